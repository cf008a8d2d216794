"""The scheduler without a prefix cache, everything at once: everybody gets their solo output, exactly once."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.swap_space import SwapSpace
from tests.engine.scheduler_machine import (
    LATENESS,
    LIMITS,
    MAX_MODEL_LEN,
    VOCAB_SIZES,
    SchedulerMachine,
    machine_settings,
)
from tests.engine.scheduling import PagedDevice


class PlainMachine(SchedulerMachine):
    """Preemption by swap or recomputation, deadlines, fair shares; no prefix is ever shared."""

    @initialize(
        num_blocks=st.integers(2, 12),
        block_size=st.integers(1, 4),
        vocab_size=VOCAB_SIZES,
        lateness=LATENESS,
        admission_wait_s=st.sampled_from([0.0, 5.0, 1000.0]),
        swap_bytes=st.sampled_from([0, 3, 8, 1000]),
        bytes_per_state=st.integers(0, 2),
        **LIMITS,
    )
    def start(self, num_blocks, block_size, vocab_size, lateness, swap_bytes, bytes_per_state, **limits):
        config = SchedulerConfig(**limits)
        swap_space = SwapSpace(swap_bytes, 1, bytes_per_state, min_tokens=2)
        cache = CacheManager(BlockManager(num_blocks, block_size), swap_space=swap_space)
        device = PagedDevice(num_blocks, block_size, config.max_num_seqs, vocab_size, True, lateness)
        self.begin(Scheduler(config, cache, MAX_MODEL_LEN), device, config, swap_space)

    @rule(
        prompt=st.lists(st.integers(1, 3), max_size=20),
        max_tokens=st.integers(1, 12),
        n=st.integers(1, 3),
        is_held=st.booleans(),
        priority=st.integers(0, 2),
        client_id=st.integers(0, 2),
    )
    def submit(self, prompt, max_tokens, n, is_held, priority, client_id):
        self.request(prompt, max_tokens, n, priority, is_held, client_id=client_id)


TestPlainMachine = PlainMachine.TestCase
TestPlainMachine.settings = machine_settings(max_examples=150, steps=40)

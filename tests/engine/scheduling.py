"""What the scheduler's tests share: sequences, schedulers, and a paged memory of token ids that shows every mistake."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable

from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.mask_source import NO_MASK_ROW
from sparkinfer.engine.prefix_cache import PrefixCache
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import Logprobs, ScheduledSequence, SchedulerOutput, StepResult
from sparkinfer.engine.sequence import Sequence
from sparkinfer.engine.snapshot_pool import SnapshotPool
from sparkinfer.engine.swap_space import SwapSpace
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams

EOS = 0
NO_TOKEN = -5
GARBAGE = -7  # a token that no prompt has


def next_token(prefix: list[int], vocab_size: int) -> int:
    """A function of every token before it, so that a wrong block, position or order shows."""
    digest = hashlib.blake2b(repr(prefix).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % vocab_size


def solo_output(prompt: list[int], max_tokens: int, vocab_size: int) -> list[int]:
    """What a sequence must get, whatever happens around it."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        token = next_token(tokens, vocab_size)
        if token == EOS:
            break
        tokens.append(token)
    return tokens[len(prompt):]


class PagedDevice:
    """What a device remembers between steps, and nothing else: tokens by pool row, tables and last tokens by slot.

    Recurrent state is the list of all tokens that went through a slot, None where it is undefined; has_state says
    whether it has to be right. Masks of rows that have one are late as `lateness` has it, again and again.
    """

    def __init__(
        self, num_blocks: int, block_size: int, num_slots: int, vocab_size: int, has_state: bool = False,
        lateness: Iterable[bool] = (False,),
    ) -> None:
        self.has_state = has_state
        self.lateness = itertools.cycle(lateness)
        self.late: dict[int, int | None] = {}  # tokens that wait for a mask, by slot
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.pool: list[int | None] = [None] * (num_blocks * block_size)
        self.tables: list[list[int]] = [[] for _ in range(num_slots)]
        self.last_token: list[int | None] = [None] * num_slots
        self.states: list[list[int] | None] = [[] for _ in range(num_slots)]
        self.snapshots: dict[int, list[int] | None] = {}
        self.swapped: dict[int, tuple[list[int | None], list[int] | None]] = {}

    def run(self, output: SchedulerOutput) -> StepResult:
        result = StepResult([])
        self.swap_out(output)
        self.copy_states(output)
        self.swap_in(output)
        assert len({row.slot for row in output.rows}) == len(output.rows)
        for row in output.rows:
            table = self.take_blocks(row)
            if row.mask_row != NO_MASK_ROW and row.token_ids is None and row.slot in self.late:
                token = self.late[row.slot]
            else:
                token = self.compute(row, table)
            if row.samples:
                self.sample(row, token, result)
        for chunk in output.scored:
            first = chunk.row.start + chunk.first + 1
            result.scores.append([Logprobs(float(first + i), [], []) for i in range(len(chunk.token_ids))])
        return result

    def take_blocks(self, row: ScheduledSequence) -> list[int]:
        table = self.tables[row.slot]
        if row.admitted is not None:
            table.clear()
            self.last_token[row.slot] = None
        assert row.first_new_block == len(table) or not row.new_blocks
        table.extend(row.new_blocks)
        return table

    def leave_undone(self, output: SchedulerOutput) -> None:
        """A step that found no memory: the host has taken note of it, nothing was copied or computed."""
        for slot, snapshot, restores, _ in output.state_copies:
            if restores:
                self.states[slot] = None
            else:
                self.snapshots[snapshot] = None
        for block, _ in output.block_loads:
            self.write([block], 0, [GARBAGE] * self.block_size)
        for row in output.rows:
            self.write(self.take_blocks(row), row.start, [GARBAGE] * row.num_tokens)
            self.states[row.slot], self.last_token[row.slot] = None, GARBAGE

    def write(self, table: list[int], start: int, tokens: list[int | None]) -> None:
        for position, token in enumerate(tokens, start):
            self.pool[table[position // self.block_size] * self.block_size + position % self.block_size] = token

    def compute(self, row: ScheduledSequence, table: list[int]) -> int | None:
        """The token behind those of the row."""
        tokens = [self.last_token[row.slot]] if row.token_ids is None else row.token_ids
        assert len(tokens) == row.num_tokens > 0
        state = self.states[row.slot] if row.start else []
        if state is None:
            state = [GARBAGE] * row.start
        assert len(state) == row.start or not self.has_state
        state = self.states[row.slot] = state + tokens
        self.write(table, row.start, tokens)
        if not row.samples:
            return None
        prefix = [
            self.pool[table[i // self.block_size] * self.block_size + i % self.block_size]
            for i in range(row.start + row.num_tokens)
        ]
        if GARBAGE in prefix or (self.has_state and GARBAGE in state):
            return GARBAGE
        assert prefix == state or not self.has_state
        return next_token(prefix, self.vocab_size)

    def sample(self, row: ScheduledSequence, token: int | None, result: StepResult) -> None:
        self.late.pop(row.slot, None)
        if row.mask_row != NO_MASK_ROW and next(self.lateness):
            self.late[row.slot] = token
            result.late_rows.append(len(result.token_ids))
            token = NO_TOKEN
        if token == GARBAGE:
            result.nan_rows.append(len(result.token_ids))
        self.last_token[row.slot] = token
        result.token_ids.append(token)

    def swap_out(self, output: SchedulerOutput) -> None:
        for swap_id in output.swap_drops:
            self.swapped.pop(swap_id, None)  # a step that failed may not have come so far
        for order in output.swap_outs:
            assert order.swap_id not in self.swapped
            rows = [self.pool[block * self.block_size + i] for block in order.blocks for i in range(self.block_size)]
            self.swapped[order.swap_id] = (rows, self.states[order.slot])

    def copy_states(self, output: SchedulerOutput) -> None:
        for slot, snapshot, restores, _ in output.state_copies:
            if restores:
                self.states[slot] = self.snapshots[snapshot]
            else:
                self.snapshots[snapshot] = self.states[slot]

    def swap_in(self, output: SchedulerOutput) -> None:
        for order in output.swap_ins:
            undone = [GARBAGE] * (len(order.blocks) * self.block_size), None
            rows, self.states[order.slot] = self.swapped.pop(order.swap_id, undone)
            self.write(order.blocks, 0, rows)


def make_scheduler(
    num_blocks: int = 16, block_size: int = 4, max_model_len: int = 1000, swap_space: SwapSpace | None = None,
    num_snapshots: int | None = None, **limits,
) -> Scheduler:
    """num_snapshots: of a prefix cache for a model with recurrent state; None: no prefix cache."""
    blocks = BlockManager(num_blocks, block_size)
    prefix_cache = None
    if num_snapshots is not None:
        config = PrefixCacheConfig(min_tokens=0, checkpoint_tokens=3)
        prefix_cache = PrefixCache(config, blocks, SnapshotPool(num_snapshots))
    cache = CacheManager(blocks, prefix_cache, swap_space)
    return Scheduler(SchedulerConfig(**limits), cache, max_model_len)


def make_sequence(request_id: int, prompt: list[int], max_tokens: int = 100, priority: int = 0, choice: int = 0):
    sampling = SamplingParams(max_tokens=max_tokens, seed=0)
    return Sequence(RequestId(request_id), choice, 0, prompt, sampling, frozenset([EOS]), 0.0, priority)


def add(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        scheduler.add([sequence], 0.0)


def shape(output: SchedulerOutput) -> list[tuple[int, int, int, bool]]:
    return [(row.sequence.request_id, row.start, row.num_tokens, row.samples) for row in output.scheduled]


def give(scheduler: Scheduler, output: SchedulerOutput, token: int = 9) -> None:
    scheduler.update(output, StepResult([token] * len(output.sampling_rows)), 1.0)

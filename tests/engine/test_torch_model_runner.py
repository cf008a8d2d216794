"""TorchModelRunner under the Engine, with a model whose next token depends on every token before it."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.input_batch import InputBatch
from sparkinfer.engine.model_runner import DeviceMemoryError
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence, SchedulerOutput
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.engine.torch_model_runner import CPU_OUT_OF_MEMORY, TorchModelRunner
from sparkinfer.request import FinishReason, RequestId
from sparkinfer.sampling_params import SamplingParams

CPU = torch.device("cpu")
VOCAB_SIZE = 32
PRIME = 2_147_483_647


class TokenPool:
    """Stands for KVCache: one number a row, the token itself; rows that were never written are negative."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.rows = torch.full((num_blocks * block_size,), -1, dtype=torch.int64)
        self.pools = [self.rows]


class HashState:
    """Stands for StatePool: a recurrent hash a slot, garbage until a sequence starts in it."""

    def __init__(self, num_slots: int) -> None:
        self.hashes = torch.full((num_slots,), 123_456, dtype=torch.int64)
        self.pools = [self.hashes[None]]


class HashModel:
    """Logits are a function of the hash of the whole prefix, found twice: from the pool and from the state."""

    def __init__(self) -> None:
        self.hparams = SimpleNamespace(vocab_size=VOCAB_SIZE)
        self.fail: Exception | None = None
        self.has_failed = False
        self.bad_token: int | None = None
        self.threads: set[str] = set()

    def forward(self, batch, kv_cache, state_pool) -> torch.Tensor:
        self.threads.add(threading.current_thread().name)
        if self.fail is not None:
            error, self.fail, self.has_failed = self.fail, None, True
            raise error
        assert batch.query_lens == batch.cu_seqlens_q.diff().tolist()
        assert batch.context_lens_cpu == batch.context_lens.tolist()
        kv_cache.rows[batch.slot_mapping] = batch.input_ids
        hashes = torch.zeros_like(batch.input_ids)
        for i, (query_len, context_len) in enumerate(zip(batch.query_lens, batch.context_lens_cpu)):
            first = int(batch.cu_seqlens_q[i])
            positions = torch.arange(context_len)
            assert batch.positions[first : first + query_len].tolist() == positions[-query_len:].tolist()
            blocks = batch.block_tables[i, positions // kv_cache.block_size].long()
            tokens = kv_cache.rows[blocks * kv_cache.block_size + positions % kv_cache.block_size]
            slot = batch.state_slots[i]
            state = 7 if query_len == context_len else int(state_pool.hashes[slot])
            for j, token in enumerate(batch.input_ids[first : first + query_len].tolist()):
                state = (state * 48_271 + token + 1) % PRIME
                hashes[first + j] = state
            state_pool.hashes[slot] = state
            # After a failed step, the step launched behind it computes rows of sequences that are gone.
            assert self.has_failed or state == prefix_hash(tokens.tolist())
        logits = logits_of(hashes[batch.logits_indices])
        if self.bad_token is not None:
            logits[batch.input_ids[batch.logits_indices] == self.bad_token] = float("nan")
        return logits


def prefix_hash(tokens: list[int]) -> int:
    state = 7
    for token in tokens:
        assert token >= 0
        state = (state * 48_271 + token + 1) % PRIME
    return state


def logits_of(hashes: torch.Tensor) -> torch.Tensor:
    """[num_rows] -> [num_rows, VOCAB_SIZE] f32, spread over a few nats."""
    mixed = (hashes[:, None] * (2 * torch.arange(VOCAB_SIZE) + 1) * 2_654_435_761) >> 7
    return (mixed % 1009).float() / 200


class ListSink:
    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.logprobs: dict[tuple[int, int], list[object]] = {}
        self.finished: dict[tuple[int, int], object] = {}

    def publish(self, events: StepEvents) -> None:
        logprobs = events.logprobs or [None] * len(events.sequences)
        for sequence, token_id, entry in zip(events.sequences, events.token_ids, logprobs, strict=True):
            key = (sequence.request_id, sequence.choice)
            self.tokens.setdefault(key, []).append(token_id)
            self.logprobs.setdefault(key, []).append(entry)
        self.finished |= {(sequence.request_id, sequence.choice): sequence for sequence in events.finished}


class Rig:
    def __init__(
        self, num_blocks=64, block_size=4, overlap=True, max_num_seqs=8, model=None, swap_space=None, **limits
    ) -> None:
        self.model = model or HashModel()
        self.runner = TorchModelRunner(
            self.model, TokenPool(num_blocks, block_size), HashState(max_num_seqs), max_num_seqs, 200, CPU
        )
        config = SchedulerConfig(max_num_seqs=max_num_seqs, **limits)
        self.scheduler = Scheduler(
            config, CacheManager(BlockManager(num_blocks, block_size), swap_space=swap_space), 200
        )
        self.sink = ListSink()
        self.engine = Engine(self.scheduler, self.runner, self.sink, frozenset([0]), overlap)

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *exception) -> None:
        self.engine.close()

    def run(self, requests, steps_between: int = 0) -> ListSink:
        for request_id, (prompt, controls) in enumerate(requests):
            self.engine.submit(RequestId(request_id), 0, prompt, SamplingParams(**controls))
            for _ in range(steps_between):
                self.engine.step()
        while self.engine.has_work:
            self.engine.step()
        return self.sink


CONTROLS = [
    {"temperature": 0.0},
    {"temperature": 0.0, "frequency_penalty": 0.8, "presence_penalty": 0.3},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 1.2, "top_p": 0.8, "seed": 4, "logprobs": 2},
    {"temperature": 0.7, "top_k": 5, "min_p": 0.05, "seed": 2**63 + 1, "repetition_penalty": 1.3},
    {"temperature": 0.0, "logit_bias": {3: 2.0, 9: -50.0}, "logprobs": 0},
]


def make_requests(count: int, seed: int) -> list[tuple[list[int], dict[str, object]]]:
    rng = np.random.default_rng(seed)
    return [
        (
            rng.integers(1, VOCAB_SIZE, rng.integers(1, 40)).tolist(),
            {"max_tokens": int(rng.integers(1, 30)), **CONTROLS[i % len(CONTROLS)]},
        )
        for i in range(count)
    ]


def solo(requests) -> list[tuple[list[int], list[object]]]:
    """Each request by itself, its prompt in one piece, without overlap."""
    results = []
    for request in requests:
        with Rig(num_blocks=64, overlap=False) as rig:
            sink = rig.run([request])
            results.append((sink.tokens.get((0, 0), []), sink.logprobs.get((0, 0), [])))
    return results


REQUESTS = make_requests(12, seed=5)


@pytest.fixture(scope="module")
def solo_results():
    return solo(REQUESTS)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    num_blocks=st.integers(18, 64),
    chunk=st.integers(1, 40),
    batched=st.integers(4, 64),
    max_num_seqs=st.integers(1, 12),
    overlap=st.booleans(),
    steps_between=st.integers(0, 3),
)
def test_any_batching_gives_the_solo_outputs(
    solo_results, num_blocks, chunk, batched, max_num_seqs, overlap, steps_between
):
    with Rig(
        num_blocks, overlap=overlap, max_num_seqs=max_num_seqs,
        prefill_chunk_tokens=chunk, max_num_batched_tokens=batched,
    ) as rig:
        sink = rig.run(REQUESTS, steps_between)
        for i, (tokens, logprobs) in enumerate(solo_results):
            assert sink.tokens.get((i, 0), []) == tokens
            assert sink.logprobs.get((i, 0), []) == logprobs


def test_preemption_happens_and_changes_nothing(solo_results):
    with Rig(num_blocks=24, max_num_seqs=12) as rig:
        sink = rig.run(REQUESTS)
        assert rig.scheduler.num_preemptions > 0
        assert [sink.tokens.get((i, 0), []) for i in range(len(REQUESTS))] == [tokens for tokens, _ in solo_results]


def test_n_choices_draw_differently_and_repeat_with_the_seed():
    prompt = [1, 2, 3]
    with Rig() as rig:
        for request_id in range(2):
            rig.engine.submit(
                RequestId(request_id), 0, prompt, SamplingParams(max_tokens=12, seed=8, ignore_eos=True), n=3
            )
        sink = rig.run([])
    choices = [tuple(sink.tokens[(0, i)]) for i in range(3)]
    assert len(set(choices)) == 3
    assert choices == [tuple(sink.tokens[(1, i)]) for i in range(3)]
    with Rig() as rig:
        rig.engine.submit(RequestId(0), 0, prompt, SamplingParams(max_tokens=12, seed=9, ignore_eos=True))
        assert tuple(rig.run([]).tokens[(0, 0)]) == choices[1]


def test_the_model_runs_on_the_runners_own_thread():
    with Rig() as rig:
        rig.run(REQUESTS[:2])
        assert rig.model.threads == {"model_runner_0"}


def test_a_row_of_nan_ends_its_sequence_and_no_other(solo_results):
    model = HashModel()
    model.bad_token = 31
    requests = [([31], {"max_tokens": 5}), ([1, 2], {"max_tokens": 6, "temperature": 0.0, "logit_bias": {31: -99.0}})]
    with Rig(model=model) as rig:
        sink = rig.run(requests)
    assert (sink.finished[(0, 0)].status_code, sink.finished[(0, 0)].code) == (500, "nan_logits")
    assert (0, 0) not in sink.tokens
    [(alone, _)] = solo(requests[1:])
    assert sink.tokens[(1, 0)] == alone


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("out of memory"), RuntimeError(f"{CPU_OUT_OF_MEMORY}: you tried to allocate 9 TB")]
)
def test_a_step_without_memory_costs_its_sequences_only(error):
    penalised = {"max_tokens": 8, "temperature": 0.0, "frequency_penalty": 0.8, "ignore_eos": True}
    model = HashModel()
    with Rig(model=model) as rig:
        model.fail = error
        rig.engine.submit(RequestId(0), 0, [5], SamplingParams(**penalised))
        rig.engine.step()
        rig.engine.submit(RequestId(1), 0, [6], SamplingParams(**penalised))
        sink = rig.run([])
    assert (sink.finished[(0, 0)].status_code, sink.finished[(0, 0)].code) == (503, "out_of_memory")
    [(alone, _)] = solo([([6], penalised)])
    assert sink.tokens[(1, 0)] == alone
    assert sink.finished[(1, 0)].finish_reason == FinishReason.LENGTH


def test_any_other_error_of_a_step_surfaces_where_it_is_waited_for():
    model = HashModel()
    with Rig(model=model) as rig:
        model.fail = RuntimeError("a defect")
        rig.engine.submit(RequestId(0), 0, [5], SamplingParams(max_tokens=3))
        rig.engine.step()
        with pytest.raises(RuntimeError, match="a defect"):
            rig.engine.step()


def test_a_step_is_done_when_the_model_has_run_or_failed():
    class SlowModel(HashModel):
        def __init__(self) -> None:
            super().__init__()
            self.may_run = threading.Event()

        def forward(self, batch, kv_cache, state_pool) -> torch.Tensor:
            self.may_run.wait()
            return super().forward(batch, kv_cache, state_pool)

    model = SlowModel()
    with Rig(model=model) as rig:
        model.fail = RuntimeError("a defect")
        handle = rig.runner.launch(
            SchedulerOutput([ScheduledSequence(None, 0, 0, 3, [4, 5, 6], 0, (7,), True, admission())], 3)
        )
        assert not handle.is_done(0.001)
        model.may_run.set()
        while not handle.is_done(10.0):
            pass
        with pytest.raises(RuntimeError, match="a defect"):
            handle.wait()


def test_a_step_without_sampling_rows_and_the_memory_error_are_told_apart():
    model = HashModel()
    with Rig(model=model, prefill_chunk_tokens=2) as rig:
        handle = rig.runner.launch(
            SchedulerOutput([ScheduledSequence(None, 0, 0, 2, [4, 5], 0, (7,), False, admission())], 2)
        )
        assert handle.wait().token_ids == []
        model.fail = torch.OutOfMemoryError()
        handle = rig.runner.launch(SchedulerOutput([ScheduledSequence(None, 0, 2, 1, [6], 1, (), True)], 1))
        with pytest.raises(DeviceMemoryError):
            handle.wait()


def admission() -> Admission:
    return Admission(SamplingParams(max_tokens=1, seed=0), [4, 5, 6], ())


def test_input_batch_lays_out_a_mixed_step():
    batch = InputBatch(num_slots=4, block_size=4, max_model_len=16, device=CPU)
    first = SchedulerOutput([ScheduledSequence(None, 2, 0, 3, [11, 12, 13], 0, (9,), True, admission())], 3)
    batch.build(first)
    batch.store([2], torch.tensor([14]))
    mixed = SchedulerOutput(
        [
            ScheduledSequence(None, 2, 3, 1, None, 1, (), True),
            ScheduledSequence(None, 0, 0, 5, [21, 22, 23, 24, 25], 0, (3, 1), False, admission()),
        ],
        6,
    )
    inputs = batch.build(mixed)
    batch.feed(inputs)
    forward = inputs.forward_batch
    assert forward.input_ids.tolist() == [14, 21, 22, 23, 24, 25]
    assert forward.positions.tolist() == [3, 0, 1, 2, 3, 4]
    assert forward.slot_mapping.tolist() == [39, 12, 13, 14, 15, 4]
    assert forward.block_tables.tolist() == [[9, 0], [3, 1]]
    assert forward.cu_seqlens_q.tolist() == [0, 1, 6]
    assert forward.context_lens.tolist() == forward.context_lens_cpu == [4, 5]
    assert forward.state_slots.tolist() == [2, 0]
    assert forward.logits_indices.tolist() == [0]
    assert {name: getattr(forward, name).dtype for name in ("input_ids", "positions", "slot_mapping")} == {
        "input_ids": torch.int64, "positions": torch.int64, "slot_mapping": torch.int64,
    }
    assert forward.cu_seqlens_q.dtype == forward.context_lens.dtype == forward.block_tables.dtype == torch.int32

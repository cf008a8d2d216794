"""TorchModelRunner under the Engine: any batching gives what each request gets alone, and failures cost their own."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.engine.model_runner import DeviceMemoryError
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence, SchedulerOutput
from sparkinfer.engine.torch_model_runner import CPU_OUT_OF_MEMORY
from sparkinfer.request import FinishReason, RequestId
from sparkinfer.sampling_params import SamplingParams
from tests.engine.engines import sampling
from tests.engine.hash_model import REQUESTS, HashModel, Rig, solo


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
                RequestId(request_id), 0, prompt, sampling(max_tokens=12, seed=8, ignore_eos=True), n=3
            )
        sink = rig.run([])
    choices = [tuple(sink.tokens[(0, i)]) for i in range(3)]
    assert len(set(choices)) == 3
    assert choices == [tuple(sink.tokens[(1, i)]) for i in range(3)]
    with Rig() as rig:
        rig.engine.submit(RequestId(0), 0, prompt, sampling(max_tokens=12, seed=9, ignore_eos=True))
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
        rig.engine.submit(RequestId(0), 0, [5], sampling(**penalised))
        rig.engine.step()
        rig.engine.submit(RequestId(1), 0, [6], sampling(**penalised))
        sink = rig.run([])
    assert (sink.finished[(0, 0)].status_code, sink.finished[(0, 0)].code) == (503, "out_of_memory")
    [(alone, _)] = solo([([6], penalised)])
    assert sink.tokens[(1, 0)] == alone
    assert sink.finished[(1, 0)].finish_reason == FinishReason.LENGTH


def test_any_other_error_of_a_step_surfaces_where_it_is_waited_for():
    model = HashModel()
    with Rig(model=model) as rig:
        model.fail = RuntimeError("a defect")
        rig.engine.submit(RequestId(0), 0, [5], sampling(max_tokens=3))
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

"""Engine over ScriptedModelRunner: what the owner of an Engine can rely on."""

from __future__ import annotations

import pytest

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.engine import WAIT_POLL_S, Engine
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, StepCost, cycle_script, echo_script
from sparkinfer.engine.model_runner import DeviceMemoryError
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import SchedulerOutput, StepResult
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import FinishReason, RequestId
from sparkinfer.sampling_params import SamplingParams

EOS = 0


class RecordingSink:
    """Keeps everything, and checks that nothing follows an end."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.finished: dict[tuple[int, int], object] = {}
        self.queued: list[int] = []
        self.batches: list[StepEvents] = []

    def publish(self, events: StepEvents) -> None:
        assert events
        self.batches.append(events)
        self.queued += [sequence.request_id for sequence in events.queued]
        for sequence, token_id in zip(events.sequences, events.token_ids, strict=True):
            key = (sequence.request_id, sequence.choice)
            assert key not in self.finished
            self.tokens.setdefault(key, []).append(token_id)
        if events.logprobs is not None:
            assert len(events.logprobs) == len(events.token_ids)
        for sequence in events.finished:
            key = (sequence.request_id, sequence.choice)
            assert key not in self.finished
            self.finished[key] = sequence


class Clock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_engine(runner=None, *, overlap=True, clock=None, num_blocks=64, max_model_len=1000, **limits):
    runner = runner or ScriptedModelRunner(echo_script(3, EOS), num_blocks, 4)
    scheduler = Scheduler(
        SchedulerConfig(**limits), CacheManager(BlockManager(runner.num_blocks, runner.block_size)), max_model_len
    )
    sink = RecordingSink()
    engine = Engine(scheduler, runner, sink, frozenset([EOS]), overlap, clock or Clock())
    return engine, sink


def run(engine: Engine, max_steps: int = 10_000) -> None:
    for _ in range(max_steps):
        if not engine.has_work:
            return
        engine.step()
    raise AssertionError("the engine does not come to rest")


@pytest.mark.parametrize("overlap", [True, False])
def test_a_request_is_queued_gets_its_tokens_and_ends_once(overlap):
    engine, sink = make_engine(overlap=overlap)
    assert not engine.has_work
    engine.submit(RequestId(7), 2, [5, 6, 7, 8], SamplingParams(max_tokens=10))
    run(engine)
    assert sink.queued == [7]
    assert sink.tokens == {(7, 0): [6, 7, 8]}
    end = sink.finished[(7, 0)]
    assert (end.finish_reason, end.reply_to, end.status_code, end.num_cached_tokens) == (FinishReason.STOP, 2, 0, 0)


def test_the_stop_token_is_not_told_and_ignore_eos_runs_to_the_limit():
    engine, sink = make_engine()
    engine.submit(RequestId(1), 0, [5, 6], SamplingParams(max_tokens=5, ignore_eos=True))
    engine.submit(RequestId(2), 0, [5, 6], SamplingParams(max_tokens=5, stop_token_ids=(6,)))
    run(engine)
    assert sink.tokens == {(1, 0): [5, 6, EOS, EOS, EOS], (2, 0): [5]}
    assert sink.finished[(1, 0)].finish_reason == FinishReason.LENGTH
    assert sink.finished[(2, 0)].finish_reason == FinishReason.STOP


def test_max_tokens_schedules_no_surplus_token():
    engine, sink = make_engine()
    engine.submit(RequestId(1), 0, [5, 6, 7], SamplingParams(max_tokens=2))
    run(engine)
    assert sink.tokens == {(1, 0): [5, 6]}
    assert engine.stats.num_computed_tokens == 3 + 1


def test_overlap_drops_the_surplus_token_after_a_stop():
    engine, sink = make_engine()
    engine.submit(RequestId(1), 0, [5, 6, 7], SamplingParams(max_tokens=100))
    run(engine)
    assert sink.tokens == {(1, 0): [5, 6, 7]}
    assert engine.stats.num_computed_tokens == 3 + 4  # three tokens fed back, and one beyond the stop token


def test_n_choices_have_their_own_ends_and_seeds():
    engine, sink = make_engine()
    engine.submit(RequestId(1), 0, [5, 6], SamplingParams(max_tokens=4, seed=40), n=3)
    run(engine)
    assert sink.queued == [1]
    assert sorted(sink.finished) == [(1, 0), (1, 1), (1, 2)]
    assert [sink.finished[(1, i)].sampling.seed for i in range(3)] == [40, 41, 42]


def test_the_context_limit_ends_a_sequence_with_length():
    engine, sink = make_engine(ScriptedModelRunner(cycle_script([9], 100, EOS), 64, 4), max_model_len=8)
    engine.submit(RequestId(1), 0, [1] * 7, SamplingParams(max_tokens=50))
    engine.submit(RequestId(2), 0, [1] * 4, SamplingParams(max_tokens=50))
    run(engine)
    assert {key: len(tokens) for key, tokens in sink.tokens.items()} == {(1, 0): 1, (2, 0): 4}
    assert all(end.finish_reason == FinishReason.LENGTH for end in sink.finished.values())


@pytest.mark.parametrize(
    ("prompt", "status", "code"),
    [([], 400, "empty_prompt"), ([1] * 20, 400, "context_length_exceeded"), ([1] * 16, 503, "kv_cache_too_small")],
)
def test_what_can_never_run_ends_with_an_error(prompt, status, code):
    engine, sink = make_engine(ScriptedModelRunner(echo_script(1, EOS), 4, 4), max_model_len=20)
    engine.submit(RequestId(1), 0, prompt, SamplingParams(max_tokens=4), n=2)
    run(engine)
    assert sink.queued == []
    assert [(end.finish_reason, end.status_code, end.code) for end in sink.finished.values()] == [
        (FinishReason.ERROR, status, code)
    ] * 2


def test_a_full_queue_answers_429_and_takes_requests_again_afterwards():
    engine, sink = make_engine(max_queue_depth=2)
    for request_id in range(3):
        engine.submit(RequestId(request_id), 0, [1, 2], SamplingParams(max_tokens=4), n=2)
    run(engine)
    assert sink.queued == [0, 1]
    assert sink.finished[(2, 0)].status_code == sink.finished[(2, 1)].status_code == 429
    engine.submit(RequestId(3), 0, [1, 2], SamplingParams(max_tokens=4))
    run(engine)
    assert sink.finished[(3, 0)].finish_reason == FinishReason.STOP


def test_abort_ends_waiting_and_running_sequences_and_ignores_strangers():
    engine, sink = make_engine(max_num_seqs=1)
    engine.submit(RequestId(1), 0, [1, 2], SamplingParams(max_tokens=50, ignore_eos=True))
    engine.submit(RequestId(2), 0, [1, 2], SamplingParams(max_tokens=50))
    for _ in range(3):
        engine.step()
    for request_id in (1, 2, 99, 1):
        engine.abort(RequestId(request_id))
    run(engine)
    assert {key: end.finish_reason for key, end in sink.finished.items()} == {
        (1, 0): FinishReason.ABORT,
        (2, 0): FinishReason.ABORT,
    }
    assert (2, 0) not in sink.tokens


def test_abort_of_one_choice_leaves_the_others():
    engine, sink = make_engine()
    engine.submit(RequestId(1), 0, [5, 6, 7], SamplingParams(max_tokens=9), n=3)
    engine.step()
    engine.abort(RequestId(1), choice=1)
    run(engine)
    ends = [sink.finished[(1, i)].finish_reason for i in range(3)]
    assert ends == [FinishReason.STOP, FinishReason.ABORT, FinishReason.STOP]
    assert (1, 1) not in sink.tokens


def test_open_requests_are_known_by_the_worker_they_came_from():
    engine, _ = make_engine()
    for request_id, reply_to in [(1, 0), (2, 1), (3, 0)]:
        engine.submit(RequestId(request_id), reply_to, [5, 6], SamplingParams(max_tokens=9))
    assert engine.scheduler.requests_of(0) == [1, 3]
    run(engine)
    assert engine.scheduler.requests_of(0) == []


def test_a_deadline_ends_running_and_waiting_requests_with_504():
    clock = Clock()
    engine, sink = make_engine(clock=clock, max_num_seqs=1, request_timeout_s=5.0)
    engine.submit(RequestId(1), 0, [1, 2], SamplingParams(max_tokens=500, ignore_eos=True))
    engine.submit(RequestId(2), 0, [1, 2], SamplingParams(max_tokens=500))
    for _ in range(4):
        engine.step()
    clock.now += 4.0
    engine.submit(RequestId(3), 0, [1, 2], SamplingParams(max_tokens=2))
    engine.step()
    assert not sink.finished
    clock.now += 1.0
    run(engine)
    assert [sink.finished[(i, 0)].status_code for i in (1, 2, 3)] == [504, 504, 0]


def test_times_run_from_submission():
    clock = Clock()
    engine, sink = make_engine(clock=clock)
    engine.submit(RequestId(1), 0, [5, 6, 7], SamplingParams(max_tokens=3))
    while engine.has_work:
        clock.now += 0.5
        engine.step()
    end = sink.finished[(1, 0)]
    assert (end.ttft_ms, end.generation_ms) == (1000.0, 2000.0)


def test_a_step_lasts_from_the_end_of_the_one_before():
    clock = Clock()

    class Runner(ScriptedModelRunner):
        def launch(self, output: SchedulerOutput):
            handle = super().launch(output)
            return TickingHandle(clock, handle.result)

    class TickingHandle:
        def __init__(self, clock: Clock, result: StepResult) -> None:
            self.clock = clock
            self.result = result

        def wait(self) -> StepResult:
            self.clock.now += 0.25
            return self.result

    engine, _ = make_engine(Runner(echo_script(3, EOS), 64, 4), clock=clock)
    engine.submit(RequestId(1), 0, [5, 6, 7], SamplingParams(max_tokens=3))
    engine.step()
    engine.step()
    assert (engine.stats.num_steps, engine.stats.last_step_s) == (2, 0.25)
    engine.step()
    assert engine.stats.last_step_s == 0.25


def test_a_long_wait_is_told_about_and_changes_nothing():
    polls: list[float] = []

    class Handle:
        def __init__(self, result: StepResult) -> None:
            self.result = result
            self.num_polls = 0

        def is_done(self, timeout_s: float) -> bool:
            polls.append(timeout_s)
            self.num_polls += 1
            return self.num_polls > 3

        def wait(self) -> StepResult:
            assert self.num_polls == 4
            return self.result

    class Runner(ScriptedModelRunner):
        def launch(self, output: SchedulerOutput):
            return Handle(super().launch(output).result)

    engine, sink = make_engine(Runner(echo_script(3, EOS), 64, 4))
    calls: list[int] = []
    engine.while_waiting = lambda: calls.append(engine.stats.num_steps)
    engine.submit(RequestId(1), 0, [5, 6, 7], SamplingParams(max_tokens=3))
    run(engine)
    assert sink.tokens == {(1, 0): [5, 6, 7]}
    assert len(calls) == 3 * engine.stats.num_steps
    assert polls == [WAIT_POLL_S] * 4 * engine.stats.num_steps


def test_logprobs_reach_the_sink_beside_their_tokens():
    engine, sink = make_engine()
    engine.submit(RequestId(1), 0, [5, 6], SamplingParams(max_tokens=9, logprobs=2))
    engine.submit(RequestId(2), 0, [5, 6], SamplingParams(max_tokens=9))
    run(engine)
    seen = [
        (sequence.request_id, token_id, logprobs and logprobs.top_token_ids)
        for events in sink.batches
        for sequence, token_id, logprobs in zip(events.sequences, events.token_ids, events.logprobs or [])
    ]
    assert seen == [(1, 5, [5, 6]), (2, 5, None), (1, 6, [6, 7]), (2, 6, None)]


class FailingRunner(ScriptedModelRunner):
    """The step with the given number does not fit, or yields a row of NaN."""

    def __init__(self, fail_step: int | None = None, nan_step: int | None = None) -> None:
        super().__init__(echo_script(3, EOS), 64, 4)
        self.fail_step = fail_step
        self.nan_step = nan_step
        self.step = 0

    def launch(self, output: SchedulerOutput):
        handle = super().launch(output)
        if self.step == self.fail_step:
            handle = FailedHandle()
        if self.step == self.nan_step:
            handle.result.nan_rows = [0]
        self.step += 1
        return handle


class FailedHandle:
    def wait(self) -> StepResult:
        raise DeviceMemoryError("No room.")


def test_a_step_that_does_not_fit_ends_its_sequences_only():
    engine, sink = make_engine(FailingRunner(fail_step=1))
    engine.submit(RequestId(1), 0, [5, 6, 7], SamplingParams(max_tokens=9))
    engine.step()
    engine.step()
    engine.submit(RequestId(2), 0, [5, 6, 7], SamplingParams(max_tokens=9))
    run(engine)
    assert (sink.finished[(1, 0)].status_code, sink.finished[(1, 0)].message) == (503, "No room.")
    assert sink.tokens[(2, 0)] == [5, 6, 7]
    assert engine.stats.num_failed_steps == 1


def test_a_row_of_nan_ends_its_sequence_only():
    engine, sink = make_engine(FailingRunner(nan_step=1))
    for request_id in (1, 2):
        engine.submit(RequestId(request_id), 0, [5, 6, 7], SamplingParams(max_tokens=9))
    run(engine)
    assert (sink.finished[(1, 0)].status_code, sink.finished[(1, 0)].code) == (500, "nan_logits")
    assert sink.tokens == {(1, 0): [5], (2, 0): [5, 6, 7]}
    assert engine.stats.num_nan_logits == 1


def test_publishing_overlaps_the_step_in_flight():
    """The sink hears of step k only after step k + 1 was launched."""
    order: list[str] = []

    class Runner(ScriptedModelRunner):
        def launch(self, output: SchedulerOutput):
            order.append("launch")
            return super().launch(output)

    engine, sink = make_engine(Runner(cycle_script([5], 3, EOS), 64, 4, StepCost(base_us=50.0)))
    publish = sink.publish
    sink.publish = lambda events: (order.append("publish"), publish(events))
    engine.submit(RequestId(1), 0, [1], SamplingParams(max_tokens=3))
    run(engine)
    assert order == ["launch", "publish", "launch", "launch", "publish", "publish", "publish"]
    assert sink.tokens == {(1, 0): [5, 5, 5]}


def test_the_sink_may_abort_while_it_is_told():
    engine, sink = make_engine()
    publish = sink.publish

    def publish_and_abort(events: StepEvents) -> None:
        publish(events)
        if events.sequences:
            engine.abort(RequestId(1))

    sink.publish = publish_and_abort
    engine.submit(RequestId(1), 0, [5, 6, 7], SamplingParams(max_tokens=9))
    run(engine)
    assert sink.finished[(1, 0)].finish_reason == FinishReason.ABORT
    assert sink.tokens == {(1, 0): [5]}

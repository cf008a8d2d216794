"""Engine over ScriptedModelRunner: its steps, in which order things happen, and what a failed one costs."""

from __future__ import annotations

from sparkinfer.engine.engine import WAIT_POLL_S
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, StepCost, cycle_script, echo_script
from sparkinfer.engine.model_runner import DeviceMemoryError
from sparkinfer.engine.scheduler_output import SchedulerOutput, StepResult
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import FinishReason, RequestId
from tests.engine.engines import EOS, Clock, make_engine, run, sampling


def test_times_run_from_submission():
    clock = Clock()
    engine, sink = make_engine(clock=clock)
    engine.submit(RequestId(1), 0, [5, 6, 7], sampling(max_tokens=3))
    while engine.has_work:
        clock.now += 0.5
        engine.step()
    end = sink.finished[(1, 0)]
    assert (end.ttft_ms, end.generation_ms) == (1000.0, 2000.0)


def test_times_include_a_wait_for_the_step_before():
    clock = Clock()
    engine, sink = make_engine(clock=clock, request_timeout_s=30.0)
    engine.submit(RequestId(2), 0, [5, 6], sampling(max_tokens=1), arrived_at=clock.now - 30.0)
    engine.submit(RequestId(1), 0, [5, 6], sampling(max_tokens=1), arrived_at=clock.now - 20.0)
    run(engine)
    assert (sink.finished[(1, 0)].queue_ms, sink.finished[(1, 0)].ttft_ms) == (20_000.0, 20_000.0)
    assert sink.finished[(2, 0)].status_code == 504


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
    engine.submit(RequestId(1), 0, [5, 6, 7], sampling(max_tokens=3))
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
    engine.submit(RequestId(1), 0, [5, 6, 7], sampling(max_tokens=3))
    run(engine)
    assert sink.tokens == {(1, 0): [5, 6, 7]}
    assert len(calls) == 3 * engine.stats.num_steps
    assert polls == [WAIT_POLL_S] * 4 * engine.stats.num_steps


def test_logprobs_reach_the_sink_beside_their_tokens():
    engine, sink = make_engine()
    engine.submit(RequestId(1), 0, [5, 6], sampling(max_tokens=9, logprobs=2))
    engine.submit(RequestId(2), 0, [5, 6], sampling(max_tokens=9))
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
    engine.submit(RequestId(1), 0, [5, 6, 7], sampling(max_tokens=9))
    engine.step()
    engine.step()
    engine.submit(RequestId(2), 0, [5, 6, 7], sampling(max_tokens=9))
    run(engine)
    assert (sink.finished[(1, 0)].status_code, sink.finished[(1, 0)].message) == (503, "No room.")
    assert sink.tokens[(2, 0)] == [5, 6, 7]
    assert engine.stats.num_failed_steps == 1


def test_a_row_of_nan_ends_its_sequence_only():
    engine, sink = make_engine(FailingRunner(nan_step=1))
    for request_id in (1, 2):
        engine.submit(RequestId(request_id), 0, [5, 6, 7], sampling(max_tokens=9))
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
    engine.submit(RequestId(1), 0, [1], sampling(max_tokens=3))
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
    engine.submit(RequestId(1), 0, [5, 6, 7], sampling(max_tokens=9))
    run(engine)
    assert sink.finished[(1, 0)].finish_reason == FinishReason.ABORT
    assert sink.tokens == {(1, 0): [5]}

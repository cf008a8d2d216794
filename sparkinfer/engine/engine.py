"""The loop to read first: schedule, launch, publish, collect. Knows requests and steps; never sockets or devices."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from sparkinfer.engine.mask_source import NO_MASK_ROW
from sparkinfer.engine.model_runner import DeviceMemoryError, ModelRunner, StepHandle
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import SchedulerOutput, StepResult
from sparkinfer.engine.sequence import NO_HINTS, PrefixHints, Sequence
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams

WAIT_POLL_S = 0.5


class OutputSink(Protocol):
    """Where results go; called by the thread that runs the Engine."""

    def publish(self, events: StepEvents) -> None:
        """Take the news of one step; called at most once per step, never with nothing to tell."""


@dataclass(slots=True)
class EngineStats:
    """Counts since the start; written by Engine.step, for anyone in the process to read."""

    num_steps: int = 0
    num_computed_tokens: int = 0         # of prompts and outputs, recomputed ones and dropped rows included
    num_output_tokens: int = 0           # told to the sink
    num_failed_steps: int = 0
    num_nan_logits: int = 0              # sequences that a row of NaN ended
    num_late_masks: int = 0              # rows sampled again because their mask was not there
    last_step_s: float = 0.0             # of the last step collected: from its launch, or the end of the one before
    last_step_tokens: int = 0            # of the last step launched


class Engine:
    """Runs requests on a ModelRunner, one step ahead of its results; one thread calls it.

    While the device runs step k, the host schedules and launches k + 1, publishes k - 1 and then waits for k.

    while_waiting: called every WAIT_POLL_S while a step takes longer than that, so that whoever watches the thread
    sees it alive; it must not call the Engine. None: wait in one go.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        model_runner: ModelRunner,
        sink: OutputSink,
        overlap: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """overlap False: wait for each step before the next is scheduled."""
        self.scheduler = scheduler
        self.stats = EngineStats()
        self._model_runner = model_runner
        self._sink = sink
        self._max_in_flight = 1 if overlap else 0
        self._clock = clock
        self.while_waiting: Callable[[], None] | None = None
        self.before_close: Callable[[], None] | None = None  # the last chance to use the ModelRunner
        self._in_flight: deque[tuple[SchedulerOutput, StepHandle, float]] = deque()  # and when it was launched
        self._collected_at = 0.0

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._in_flight or self.scheduler.has_events or self.scheduler.num_open_requests)

    def submit(
        self,
        request_id: RequestId,
        reply_to: int,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        n: int = 1,
        priority: int = 0,
        client_id: int = 0,
        hints: PrefixHints = NO_HINTS,
        mask_rows: tuple[int, ...] = (),
        arrived_at: float | None = None,
    ) -> None:
        """Queue `n` sequences over one prompt, choice i with seed + i.

        sampling:   its stop_token_ids are all there are; an Engine knows no model's own
        mask_rows:  where each choice's masks are; empty: nothing constrains them
        arrived_at: when its waiting began, by the engine's clock, perhaps during the step before; None: now
        The next step tells the sink that they are queued, or that each of them has ended with an error.
        """
        stop_token_ids = frozenset(sampling.stop_token_ids)
        seed = request_id if sampling.seed is None else sampling.seed
        now = self._clock()
        arrived_at = now if arrived_at is None else arrived_at
        sequences = [
            Sequence(
                request_id, choice, reply_to, prompt_token_ids, msgspec.structs.replace(sampling, seed=seed + choice),
                stop_token_ids, arrived_at, priority, client_id, hints,
                mask_rows[choice] if mask_rows else NO_MASK_ROW,
            )
            for choice in range(n)
        ]
        self.scheduler.add(sequences, now)

    def abort(self, request_id: RequestId, choice: int = -1) -> None:
        """End a request or one choice of it (-1: all); the next step tells the sink. Unknown ids are ignored."""
        self.scheduler.abort(request_id, self._clock(), choice)

    def step(self) -> bool:
        """One turn of the loop.

        False: nothing could be done, and nothing can be until a request comes or ends, a file is read or time passes.
        """
        launched = self._launch()
        told = self._publish()
        collects = len(self._in_flight) > (self._max_in_flight if launched else 0)
        if collects:
            self._collect()
        if not self.has_work:
            self.check_integrity()
        return launched or told or collects

    def check_integrity(self) -> None:
        """Raise IntegrityError if a block, a slot or a sequence is lost or has two owners."""
        self.scheduler.check_integrity()

    def close(self) -> None:
        """Give back the ModelRunner; open requests get no further events."""
        self._in_flight.clear()
        if self.before_close is not None:
            self.before_close()
        self._model_runner.close()

    def _launch(self) -> bool:
        self.scheduler.expire(self._clock())
        output = self.scheduler.schedule()
        if not output.rows:
            return False
        now = self._clock()
        for scheduled in output.scheduled:
            if scheduled.admitted is not None and scheduled.sequence.started_at is None:
                scheduled.sequence.started_at = now
        self._in_flight.append((output, self._model_runner.launch(output), self._clock()))
        self.stats.num_steps += 1
        self.stats.num_computed_tokens += output.num_tokens
        self.stats.last_step_tokens = output.num_tokens
        return True

    def _publish(self) -> bool:
        events = self.scheduler.take_events()
        if not events:
            return False
        self.stats.num_output_tokens += len(events.token_ids)
        self._sink.publish(events)
        return True

    def _collect(self) -> None:
        output, handle, launched_at = self._in_flight.popleft()
        started_at = max(launched_at, self._collected_at)
        try:
            result = self._wait(handle)
        except DeviceMemoryError as error:
            self.stats.num_failed_steps += 1
            self.scheduler.fail(output, self._clock(), 503, "out_of_memory", str(error))
        else:
            self._count(output, result)
            self.scheduler.update(output, result, self._clock())
        self._collected_at = self._clock()
        self.stats.last_step_s = self._collected_at - started_at

    def _wait(self, handle: StepHandle) -> StepResult:
        if self.while_waiting is not None:
            while not handle.is_done(WAIT_POLL_S):
                self.while_waiting()
        return handle.wait()

    def _count(self, output: SchedulerOutput, result: StepResult) -> None:
        if result.nan_rows or result.late_rows:
            rows = output.sampling_rows
            self.stats.num_nan_logits += sum(not rows[number].is_stale for number in result.nan_rows)
            self.stats.num_late_masks += sum(not rows[number].is_stale for number in result.late_rows)

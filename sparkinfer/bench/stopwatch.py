"""Drives a ModelRunner through the steps of a case and times them. Knows steps; never models."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence as Steps

from sparkinfer.bench.case import Case, Chunk, measured_steps, prefill_steps
from sparkinfer.engine.model_runner import ModelRunner, StepHandle
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence, SchedulerOutput
from sparkinfer.engine.sequence import BlockId, Sequence, SlotId
from sparkinfer.errors import CheckpointError
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams

STEPS_IN_FLIGHT = 2  # as the Engine has them: one runs, the next is queued behind it
WARM_UP_STEPS = 4


class Stopwatch:
    """Sequence i of a case has slot i and the i-th run of blocks; tokens of prompts are random, decode is greedy."""

    def __init__(self, runner: ModelRunner, vocab_size: int, max_positions: int, max_step_tokens: int) -> None:
        """max_positions: tokens of the longest sequence; the runner has blocks for as many as there will be."""
        self._runner = runner
        self._blocks_per_sequence = -(-max_positions // runner.block_size)
        self._max_step_tokens = max_step_tokens
        self._random = random.Random(0)
        self._vocab_size = vocab_size
        self._sequence = Sequence(
            RequestId(0), 0, 0, [], SamplingParams(max_tokens=1, temperature=0.0, seed=0), frozenset(), 0.0
        )

    def seconds(self, case: Case, repetitions: int) -> list[float]:
        """Time of each repetition of the case's measured steps, after a short one that is not counted.

        Later repetitions compute the same positions again. Raises CheckpointError where the model's output is not a
        number: such steps say nothing.
        """
        start = case.first_position
        first_steps = prefill_steps(case.num_seqs, 0, start, self._max_step_tokens) if start else []
        self._run([self._output(step, start, is_decode=False) for step in first_steps])
        steps = measured_steps(case, self._max_step_tokens)
        runs = [steps[:WARM_UP_STEPS], *[steps] * repetitions]
        return [self._timed(case, run) for run in runs][1:]

    def _timed(self, case: Case, steps: Steps[list[Chunk]]) -> float:
        outputs = [self._output(step, case.num_positions, is_decode=not case.is_prefill) for step in steps]
        started = time.perf_counter()
        self._run(outputs)
        return time.perf_counter() - started

    def _run(self, outputs: Steps[SchedulerOutput]) -> None:
        in_flight: list[StepHandle] = []
        for output in outputs:
            in_flight.append(self._runner.launch(output))
            if len(in_flight) == STEPS_IN_FLIGHT:
                self._take(in_flight.pop(0))
        for handle in in_flight:
            self._take(handle)

    def _take(self, handle: StepHandle) -> None:
        while not handle.is_done(1.0):
            pass
        if handle.wait().nan_rows:
            raise CheckpointError("the model's output is not a number")

    def _output(self, step: Steps[Chunk], end: int, is_decode: bool) -> SchedulerOutput:
        """One step; a sequence samples with the chunk that reaches `end`, or in every step of decode."""
        rows = [self._row(chunk, end, is_decode) for chunk in step]
        num_tokens = sum(chunk.num_tokens for chunk in step)
        return SchedulerOutput(rows, num_tokens=num_tokens, num_decode_tokens=num_tokens if is_decode else 0)

    def _row(self, chunk: Chunk, end: int, is_decode: bool) -> ScheduledSequence:
        is_new = chunk.start == 0
        first = chunk.sequence * self._blocks_per_sequence
        blocks = range(first, first + self._blocks_per_sequence) if is_new else ()
        return ScheduledSequence(
            sequence=self._sequence,
            slot=SlotId(chunk.sequence),
            start=chunk.start,
            num_tokens=chunk.num_tokens,
            token_ids=None if is_decode else self._random.choices(range(self._vocab_size), k=chunk.num_tokens),
            first_new_block=0,
            new_blocks=tuple(map(BlockId, blocks)),
            samples=is_decode or chunk.start + chunk.num_tokens == end,
            admitted=Admission(self._sequence.sampling, [], ()) if is_new else None,
        )

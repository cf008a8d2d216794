"""A step on its way: the host's end of tokens that the device is still to sample. Knows events; never models."""

from __future__ import annotations

import time
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparkinfer.engine.logprob_columns import LogprobColumns
from sparkinfer.engine.mask_gate import GatedRows
from sparkinfer.engine.sampling_batch import SamplingBatch
from sparkinfer.engine.scheduler_output import Logprobs, StepResult

QUERY_INTERVAL_S = 5e-5  # between looks at an unfinished step; the next one is queued behind it already


NO_GATES = GatedRows()


@dataclass(frozen=True, slots=True)
class EnqueuedStep:
    """All of a step that the host has to do is done.

    results:   [2, num_rows] int64 in host memory, valid once `done`: token ids; 1 where the row was finite
    done:      None where there is nothing to wait for
    logprobs:  in host memory, valid with the results
    sampling:  kept until the device has read it
    gated:     rows that got no token because of their masks
    scores:    of prompts
    """

    results: Tensor
    done: torch.cuda.Event | None
    logprobs: LogprobColumns | None = None
    sampling: SamplingBatch | None = None
    gated: GatedRows = NO_GATES
    scores: list[list[Logprobs]] = field(default_factory=list)

    def result(self) -> StepResult:
        """Wait for the device and read."""
        if self.done is not None:
            self.done.synchronize()
        token_ids, is_finite = self.results.tolist()
        nan_rows = [row for row, finite in enumerate(is_finite) if not finite and row not in self.gated.void]
        logprobs = None if self.logprobs is None else self.logprobs.rows()
        return StepResult(token_ids, logprobs, nan_rows, self.gated.empty, self.gated.late, self.scores)


@dataclass(frozen=True, slots=True)
class CudaStepHandle:
    """A step given to the runner's thread."""

    future: Future[EnqueuedStep]

    def is_done(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        if not futures.wait((self.future,), timeout_s).done:
            return False
        if self.future.exception() is not None:
            return True
        done = self.future.result().done
        while done is not None and not done.query():  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            if time.monotonic() >= deadline:
                return False
            time.sleep(QUERY_INTERVAL_S)  # an event wakes nobody before a deadline
        return True

    def wait(self) -> StepResult:
        return self.future.result().result()

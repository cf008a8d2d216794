"""The seam between deciding and computing: what the Engine asks of whatever runs a step. Knows no device."""

from __future__ import annotations

from typing import Protocol

from sparkinfer.engine.scheduler_output import SchedulerOutput, StepResult


class DeviceMemoryError(Exception):
    """A step did not fit into the device's memory. Its sequences are lost; the runner can take further steps."""


class StepHandle(Protocol):
    """A launched step."""

    def is_done(self, timeout_s: float) -> bool:
        """Whether the step has run, or failed; blocks for `timeout_s` at most to find out."""

    def wait(self) -> StepResult:
        """Block until the step has run. Raises what the step raised, DeviceMemoryError among it."""


class ModelRunner(Protocol):
    """Runs steps in the order of their launch; owns the KV pool and all state per slot.

    A step with an Admission resets the slot. Where a row has no token_ids, its token is the one last sampled in its
    slot by an earlier step, whether or not anybody has waited for that step.
    """

    num_blocks: int                      # of the KV pool
    block_size: int                      # tokens per block
    chunk_ms: dict[int, float]           # measured times of prompts' chunks by their tokens; none: not measured
    bytes_per_slot: int                  # of recurrent state
    prompt_grid: int                     # as CacheManager has it; 0: prompts may be cut anywhere

    def launch(self, output: SchedulerOutput) -> StepHandle:
        """Start a step behind those launched before; does not block on the device."""

    def copy(self, output: SchedulerOutput) -> None:
        """Only what a step copies between host and device, behind the steps launched before; waits for it."""

    def close(self) -> None:
        """Finish what was launched and give back threads and memory; nothing is launched afterwards."""

"""From logits to tokens in the CUDA runner: controls by slot, masks, the sampler. Knows slots; never models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from sparkinfer.engine.cuda_draw import compile_draws, draw, mask_rows
from sparkinfer.engine.mask_gate import GatedRows, MaskGate
from sparkinfer.engine.mask_source import NO_MASK_ROW, MaskSource
from sparkinfer.engine.sampler import Sampled, Sampler
from sparkinfer.engine.sampling_batch import SamplingBatch, SamplingSlots
from sparkinfer.engine.scheduler_output import SchedulerOutput


@dataclasses.dataclass(frozen=True, slots=True)
class SampledStep:
    """batch: to be kept until the device has read it; gated: rows that got no token because of their masks."""

    sampled: Sampled
    batch: SamplingBatch
    gated: GatedRows


class CudaSampling:
    """Used by the thread that runs steps, in launch order."""

    def __init__(self, vocab_size: int, num_slots: int, device: torch.device) -> None:
        self._slots = SamplingSlots(num_slots, device)
        kernels = (draw, mask_rows) if device.type == "cuda" else ()
        self._sampler = Sampler(vocab_size, device, *kernels)
        self._mask_gate = MaskGate(vocab_size)
        self._vocab_size, self._device = vocab_size, device

    def warm_up(self) -> None:
        """Compile what drawing and masks need, on the current stream."""
        if self._device.type == "cuda":
            compile_draws(self._vocab_size, self._device)

    def set_mask_source(self, source: MaskSource) -> None:
        self._mask_gate.source = source

    def settle(self, output: SchedulerOutput) -> SchedulerOutput:
        """See MaskGate."""
        return self._mask_gate.settle(output)

    def build(self, output: SchedulerOutput) -> SamplingBatch | None:
        """Take note of who got which slot; the controls of the rows that sample, None where none does.

        output: as settled
        """
        for row in output.scheduled:
            if row.admitted is not None:
                self._slots.admit(row.slot, row.admitted)
        rows = output.sampling_rows
        return self._slots.build(rows) if rows else None

    def is_plain(self, output: SchedulerOutput, batch: SamplingBatch) -> bool:
        """Whether every row takes its best token and nobody asks for more: nothing in the batch is set, no masks."""
        values = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
        is_held = any(row.mask_row != NO_MASK_ROW for row in output.rows)
        return all(value is None or value == () for value in values) and not is_held

    def sample(
        self, logits: Tensor, output: SchedulerOutput, batch: SamplingBatch, is_computed: Callable[[], bool]
    ) -> SampledStep:
        """Waits for masks while the device computes the logits, and hardly longer.

        logits:       [num_rows, vocab_size] f32 of the rows that were computed; those that waited here join them
        is_computed:  whether the device has them
        """
        logits = self._mask_gate.with_late(logits, output)
        gated = self._mask_gate.gate(logits, output, is_computed)
        if gated.masks is not None or gated.void:
            batch = dataclasses.replace(batch, masks=gated.masks, void_rows=gated.void)
        return SampledStep(self._sampler.sample(logits, batch), batch, gated)

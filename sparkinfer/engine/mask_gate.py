"""Brings masks and logits together: a row whose mask is late waits here with its logits, and the step goes on.

Knows slots and mask rows; never grammars or the order of sampling controls. Used by the thread that runs steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparkinfer.engine.mask_source import NO_MASK_ROW, WORD_BITS, MaskSource
from sparkinfer.engine.scheduler_output import ScheduledSequence, SchedulerOutput
from sparkinfer.engine.sequence import SlotId
from sparkinfer.engine.token_mask import MaskBatch
from sparkinfer.engine.upload import to_device

Words = npt.NDArray[np.int32]

# A step that has nothing to do but sample late rows looks for their masks this long before it gives up.
LATE_WAIT_S = 0.005
LATE_POLL_S = 0.0002


@dataclass(frozen=True, slots=True)
class GatedRows:
    """What became of a step's sampling rows; numbers of rows in SchedulerOutput.sampling_rows."""

    masks: MaskBatch | None = None
    late: list[int] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)   # nothing is allowed


class MaskGate:
    """Without constrained sequences it does nothing."""

    def __init__(self, vocab_size: int) -> None:
        self.source: MaskSource | None = None
        self._vocab_size = vocab_size
        self._mask_rows: dict[SlotId, int] = {}
        self._late_logits: dict[SlotId, Tensor] = {}  # [vocab_size] f32 each

    def admit(self, output: SchedulerOutput) -> None:
        """Take note of who got which slot in this step."""
        for row in output.scheduled:
            if row.admitted is not None:
                self._late_logits.pop(row.slot, None)
                self._mask_rows.pop(row.slot, None)
                if row.admitted.mask_row != NO_MASK_ROW:
                    self._mask_rows[row.slot] = row.admitted.mask_row

    def concerns(self, output: SchedulerOutput) -> bool:
        """Whether a row of this step is constrained, or waited here for its mask."""
        return bool(output.resampled) or any(row.slot in self._mask_rows for row in output.sampling_rows)

    def with_late(self, logits: Tensor | None, output: SchedulerOutput) -> Tensor:
        """The logits of all sampling rows: those just computed, then those that waited here."""
        late = [self._late_logits.pop(row.slot) for row in output.resampled]
        parts = [] if logits is None else [logits]
        return torch.cat([*parts, torch.stack(late)]) if late else parts[0]

    def gate(self, logits: Tensor, output: SchedulerOutput) -> GatedRows:
        """Fetch the masks of a step's rows, and keep the logits of those whose mask is not there yet.

        logits: [num_rows, vocab_size] f32, as with_late gives them
        """
        rows = output.sampling_rows
        if not self._mask_rows or not any(row.slot in self._mask_rows for row in rows):
            return GatedRows()
        found, late = self._fetch(rows, wait_s=0.0 if output.scheduled else LATE_WAIT_S)
        for number in late:
            self._late_logits[rows[number].slot] = logits[number].clone()
        if not found:
            return GatedRows(None, late)
        words = np.stack(list(found.values()))
        empty = [number for number, is_empty in zip(found, self._are_empty(words).tolist()) if is_empty]
        masks = MaskBatch(
            to_device(np.array(list(found), np.int64), logits.device), to_device(words, logits.device)
        )
        return GatedRows(masks, late, empty)

    def _fetch(self, rows: Sequence[ScheduledSequence], wait_s: float) -> tuple[dict[int, Words], list[int]]:
        """Masks by row number, and the numbers of rows that have none yet."""
        assert self.source is not None, "a constrained sequence, and nobody to ask for its masks"
        found: dict[int, Words] = {}
        late = [number for number, row in enumerate(rows) if row.slot in self._mask_rows]
        deadline = time.monotonic() + wait_s
        while True:
            for number in late:
                row = rows[number]
                mask = self.source.ready(self._mask_rows[row.slot], row.start + row.num_tokens)
                if mask is not None:
                    found[number] = mask
            late = [number for number in late if number not in found]
            if not late or time.monotonic() >= deadline:
                return found, late
            time.sleep(LATE_POLL_S)  # masks come through shared memory, which wakes nobody

    def _are_empty(self, words: Words) -> npt.NDArray[np.bool_]:
        full, rest = divmod(self._vocab_size, WORD_BITS)
        known = np.bitwise_or.reduce(words[:, :full], axis=1) if full else np.zeros(len(words), np.int32)
        if rest:
            known = known | (words[:, full] & np.uint32((1 << rest) - 1).astype(np.int32))
        is_empty: npt.NDArray[np.bool_] = known == 0
        return is_empty

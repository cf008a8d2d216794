"""Brings masks and logits together: a row whose mask is late waits here with its logits, and the step goes on.

Knows slots and mask rows; never grammars or the order of sampling controls. Used by the thread that runs steps.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparkinfer.engine.mask_source import NO_MASK_ROW, WORD_BITS, MaskSource
from sparkinfer.engine.scheduler_output import ScheduledSequence, SchedulerOutput
from sparkinfer.engine.sequence import SlotId
from sparkinfer.engine.token_mask import MaskBatch
from sparkinfer.engine.upload import on_host, to_device

Words = npt.NDArray[np.int32]

# How long masks are waited for once the forward has run: rows that could go on wait with them.
GRACE_S = 0.0003
# The same where every row of a step was late before: nobody else waits, and nothing else is to be done.
LATE_WAIT_S = 0.005
POLL_S = 0.00005
# A row waited for in vain n times on end is not waited for at its next 2^n - 1 tokens; n is at most this.
MAX_LAPSES = 6


@dataclass(frozen=True, slots=True)
class GatedRows:
    """What became of a step's sampling rows; numbers of rows in SchedulerOutput.sampling_rows."""

    masks: MaskBatch | None = None
    late: list[int] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)   # nothing is allowed
    stale: list[int] = field(default_factory=list)   # nobody wants their tokens any more, and no mask will come

    @property
    def void(self) -> tuple[int, ...]:
        """Rows whose token means nothing."""
        return (*self.late, *self.empty, *self.stale)


class MaskGate:
    """Without constrained sequences it does nothing."""

    def __init__(self, vocab_size: int) -> None:
        self.source: MaskSource | None = None
        self._vocab_size = vocab_size
        self._late_logits: dict[SlotId, Tensor] = {}  # [vocab_size] f32 each
        self._lapses: dict[SlotId, int] = {}          # waits in vain, one after the other
        self._unwaited: dict[SlotId, int] = {}        # tokens that nobody waits for, after those

    def settle(self, output: SchedulerOutput) -> SchedulerOutput:
        """The step as it can be run: a decode row whose sequence waits here samples what it waits for.

        Such a row computes nothing (num_tokens 0, in the same place). Steps come in launch order.
        """
        if all(row.mask_row == NO_MASK_ROW for row in output.scheduled):
            return output
        rows = []
        for row in output.scheduled:
            if row.admitted is not None:
                self._lapses.pop(row.slot, None)
                self._unwaited.pop(row.slot, None)
            if row.mask_row != NO_MASK_ROW and row.slot in self._late_logits:
                if row.token_ids is None:
                    row = dataclasses.replace(row, num_tokens=0)
                else:
                    del self._late_logits[row.slot]  # of a sequence that has gone, or was told its tokens
            rows.append(row)
        return dataclasses.replace(output, scheduled=rows, num_tokens=sum(row.num_tokens for row in rows))

    def with_late(self, logits: Tensor | None, output: SchedulerOutput) -> Tensor:
        """The logits of all sampling rows in order, those that waited here among them.

        logits: [num_rows, vocab_size] f32 of the rows that were computed; None where there are none
        """
        rows = output.sampling_rows
        late = [number for number, row in enumerate(rows) if not row.num_tokens]
        if not late:
            assert logits is not None
            return logits
        waited = torch.stack([self._late_logits.pop(rows[number].slot) for number in late])
        if len(late) == len(rows) or logits is None:
            return waited
        computed = [number for number, row in enumerate(rows) if row.num_tokens]
        order = np.argsort(np.array([*computed, *late], np.int64))
        return torch.cat((logits, waited)).index_select(0, to_device(order, logits.device))

    def gate(
        self, logits: Tensor, output: SchedulerOutput, is_computed: Callable[[], bool] = lambda: True
    ) -> GatedRows:
        """Fetch the masks of a step's rows, and keep the logits of those whose mask is not there in time.

        logits:       [num_rows, vocab_size] f32, as with_late gives them
        is_computed:  whether the device has them: until then, waiting costs nothing
        """
        rows = output.sampling_rows
        held = [number for number, row in enumerate(rows) if row.mask_row != NO_MASK_ROW]
        if not held:
            return GatedRows()
        found = self._fetch(rows, held, is_computed)
        missing = [number for number in held if number not in found]
        stale = [number for number in missing if rows[number].is_stale]
        late = [number for number in missing if number not in stale]
        for number in late:
            self._late_logits[rows[number].slot] = logits[number].clone()
        if not found:
            return GatedRows(None, late, stale=stale)
        words = on_host((len(found), len(next(iter(found.values())))), torch.int32, logits.device)
        np.stack(list(found.values()), out=words.numpy())
        empty = [number for number, is_empty in zip(found, self._are_empty(words.numpy()).tolist()) if is_empty]
        numbers = to_device(np.array(list(found), np.int64), logits.device)
        masks = MaskBatch(numbers, words.to(logits.device, non_blocking=True))
        return GatedRows(masks, late, empty, stale)

    def _fetch(
        self, rows: Sequence[ScheduledSequence], held: list[int], is_computed: Callable[[], bool]
    ) -> dict[int, Words]:
        """Masks by row number, as far as they come in time. Rows that were late before are not waited for."""
        found: dict[int, Words] = {}
        self._look(rows, held, found)
        is_all_late = not any(row.num_tokens for row in rows)
        awaited = held if is_all_late else self._worth_waiting(rows, held, found)
        waited_for = [] if is_all_late else awaited
        deadline = time.monotonic() + LATE_WAIT_S if is_all_late else None
        while awaited := [number for number in awaited if number not in found and not rows[number].is_stale]:
            now = time.monotonic()
            if deadline is None and is_computed():
                deadline = now + GRACE_S
            if deadline is not None and now >= deadline:
                break
            time.sleep(POLL_S)  # masks come through shared memory, which wakes nobody
            self._look(rows, awaited, found)
        for number in waited_for:
            if rows[number].is_stale:
                continue
            slot, is_in_time = rows[number].slot, number in found
            lapses = self._lapses[slot] = 0 if is_in_time else min(self._lapses.get(slot, 0) + 1, MAX_LAPSES)
            self._unwaited[slot] = 2**lapses - 1
        return found

    def _worth_waiting(
        self, rows: Sequence[ScheduledSequence], held: list[int], found: dict[int, Words]
    ) -> list[int]:
        """Held rows without a mask that the others wait for: seldom those whose masks were late time and again."""
        missing = [number for number in held if rows[number].num_tokens and number not in found]
        if len(missing) == sum(row.num_tokens > 0 for row in rows):
            return missing  # nobody else is there
        awaited = [number for number in missing if not self._unwaited.get(rows[number].slot)]
        for number in missing:
            if number not in awaited:
                self._unwaited[rows[number].slot] -= 1
        return awaited

    def _look(self, rows: Sequence[ScheduledSequence], numbers: list[int], found: dict[int, Words]) -> None:
        assert self.source is not None, "a constrained sequence, and nobody to ask for its masks"
        for number in numbers:
            mask = self.source.ready(rows[number].mask_row, rows[number].position)
            if mask is not None:
                found[number] = mask

    def _are_empty(self, words: Words) -> npt.NDArray[np.bool_]:
        full, rest = divmod(self._vocab_size, WORD_BITS)
        known = np.bitwise_or.reduce(words[:, :full], axis=1) if full else np.zeros(len(words), np.int32)
        if rest:
            known = known | (words[:, full] & np.uint32((1 << rest) - 1).astype(np.int32))
        is_empty: npt.NDArray[np.bool_] = known == 0
        return is_empty

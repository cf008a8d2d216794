"""The sampling controls of one step's rows, gathered from what is kept per slot. Knows slots; never logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparkinfer.engine.noise import UINT64, noise_keys
from sparkinfer.engine.penalties import PenaltyBatch, PenaltyReset
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence
from sparkinfer.engine.token_filter import TokenFilter
from sparkinfer.engine.token_mask import MaskBatch

# Below this, logits divided by the temperature leave float32's useful range; the draw is the argmax anyway.
MIN_TEMPERATURE = 1e-5

# Tokens sorted beyond top_k, for those equal to the last; and for rows without top_k. More are sorted where that
# turns out not to be enough.
TOP_K_TIES = 16
OPEN_CANDIDATES = 1024

_NO_LOGPROBS = -1


@dataclass(frozen=True, slots=True)
class RandomBatch:
    """Rows that are drawn rather than chosen, on the device."""

    rows: Tensor                 # [num_random] int64, rows of the step's logits
    temperature: Tensor          # [num_random, 1] f32
    keys: Tensor                 # [2, num_random] int32, halves of the noise keys
    filters: TokenFilter | None  # None: no row has one


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Additions to single logits, on the device."""

    rows: Tensor                 # [num_entries] int64, rows of the step's logits
    token_ids: Tensor            # [num_entries] int64
    values: Tensor               # [num_entries] f32


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """What Sampler needs beside the logits; as it is by default, every row takes its best token."""

    penalties: PenaltyBatch | None = None
    logit_bias: LogitBias | None = None
    random: tuple[RandomBatch, ...] = ()  # with filters and without, no row in both
    num_logprobs: list[int | None] | None = None  # [num_rows]; None: nobody asks
    masks: MaskBatch | None = None        # never from SamplingSlots: masks are fetched when the logits are there
    void_rows: tuple[int, ...] = ()       # rows whose token is thrown away: it does not count for penalties


class SamplingSlots:
    """Host copies of the controls by slot; a step is a few array gathers, whatever the vocabulary.

    `build` is called for every step, in order: it also decides which row of PenaltyState serves which slot.
    """

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self._device = device
        self._temperature = np.zeros(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int64)
        self._top_p = np.ones(num_slots, np.float32)
        self._min_p = np.zeros(num_slots, np.float32)
        self._is_filtered = np.zeros(num_slots, bool)
        self._seeds = np.zeros(num_slots, np.uint64)
        self._penalties = np.zeros((3, num_slots, 1), np.float32)
        self._num_logprobs = np.full(num_slots, _NO_LOGPROBS, np.int64)
        self._bias: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]] = {}
        self._penalty_rows: dict[int, int] = {}
        self._free_penalty_rows = list(range(num_slots - 1, -1, -1))
        self._resets: dict[int, PenaltyReset] = {}  # by row of PenaltyState, until the sequence first samples

    def admit(self, slot: int, admission: Admission) -> None:
        """Take over the controls of the sequence that gets `slot`."""
        sampling = admission.sampling
        temperature = sampling.temperature
        self._temperature[slot] = temperature if temperature >= MIN_TEMPERATURE else 0.0
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self._is_filtered[slot] = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        self._seeds[slot] = (sampling.seed or 0) & UINT64
        self._num_logprobs[slot] = _NO_LOGPROBS if sampling.logprobs is None else sampling.logprobs
        self._bias.pop(slot, None)
        if sampling.logit_bias:
            token_ids = np.fromiter(sampling.logit_bias.keys(), np.int64)
            self._bias[slot] = (token_ids, np.fromiter(sampling.logit_bias.values(), np.float32))
        self._admit_penalties(slot, admission)

    def build(self, rows: list[ScheduledSequence]) -> SamplingBatch:
        """Controls of the rows that sample in this step, in order."""
        slots = np.array([row.slot for row in rows], np.int64)
        num_logprobs = self._num_logprobs[slots]
        return SamplingBatch(
            penalties=self._build_penalties(slots) if self._penalty_rows else None,
            logit_bias=self._build_bias(slots) if self._bias else None,
            random=self._build_random(slots, rows),
            num_logprobs=[None if n == _NO_LOGPROBS else int(n) for n in num_logprobs]
            if (num_logprobs != _NO_LOGPROBS).any()
            else None,
        )

    def _admit_penalties(self, slot: int, admission: Admission) -> None:
        if slot in self._penalty_rows:
            self._free_penalty_rows.append(self._penalty_rows.pop(slot))
        sampling = admission.sampling
        controls = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty)
        if controls == (0.0, 0.0, 1.0):
            return
        self._penalties[:, slot, 0] = controls
        row = self._penalty_rows[slot] = self._free_penalty_rows.pop()
        self._resets[row] = PenaltyReset(row, admission.prompt_token_ids, admission.output_token_ids)

    def _build_penalties(self, slots: npt.NDArray[np.int64]) -> PenaltyBatch | None:
        by_slot = self._penalty_rows
        found = [(row, by_slot[slot]) for row, slot in enumerate(slots.tolist()) if slot in by_slot]
        if not found:
            return None
        resets = [self._resets.pop(state_row) for _, state_row in found if state_row in self._resets]
        rows, state_rows = np.array(found, np.int64).T
        controls = self._penalties[:, slots[rows]]
        presence, frequency, repetition = self._tensor(controls)
        return PenaltyBatch(
            resets,
            int(state_rows.max()) + 1,
            self._tensor(rows),
            self._tensor(state_rows),
            presence,
            frequency,
            repetition,
            has_repetition=bool((controls[2] != 1).any()),
        )

    def _build_bias(self, slots: npt.NDArray[np.int64]) -> LogitBias | None:
        found = [(row, *self._bias[slot]) for row, slot in enumerate(slots.tolist()) if slot in self._bias]
        if not found:
            return None
        rows = np.repeat([row for row, _, _ in found], [len(token_ids) for _, token_ids, _ in found])
        token_ids = np.concatenate([token_ids for _, token_ids, _ in found])
        values = np.concatenate([values for _, _, values in found])
        return LogitBias(self._tensor(rows), self._tensor(token_ids), self._tensor(values))

    def _build_random(self, slots: npt.NDArray[np.int64], rows: list[ScheduledSequence]) -> tuple[RandomBatch, ...]:
        is_random = self._temperature[slots] > 0
        if not is_random.any():
            return ()
        is_filtered = self._is_filtered[slots]
        positions = np.array([row.start + row.num_tokens for row in rows])
        keys = noise_keys(self._seeds[slots], positions)
        batches = []
        for has_filters in (False, True):
            chosen = np.flatnonzero(is_random & (is_filtered == has_filters))
            if len(chosen):
                batches.append(
                    RandomBatch(
                        self._tensor(chosen),
                        self._tensor(self._temperature[slots[chosen], None]),
                        self._tensor(keys[:, chosen]),
                        self._filters(slots[chosen]) if has_filters else None,
                    )
                )
        return tuple(batches)

    def _filters(self, slots: npt.NDArray[np.int64]) -> TokenFilter:
        top_k, top_p, min_p = self._top_k[slots], self._top_p[slots], self._min_p[slots]
        is_open = top_k == 0
        num_candidates = int(top_k.max()) + TOP_K_TIES
        return TokenFilter(
            self._tensor(top_k),
            self._tensor(top_p),
            self._tensor(min_p),
            num_candidates=max(num_candidates, OPEN_CANDIDATES) if is_open.any() else num_candidates,
            has_open_top_p=bool((is_open & (top_p < 1)).any()),
            has_top_k=not is_open.all(),
            has_top_p=bool((top_p < 1).any()),
        )

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)

"""What one step does, and what came out of it: the records between Scheduler and ModelRunner.

Knows slots, blocks and token ids; never why a sequence was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, NewType

from sparkinfer.engine.mask_source import NO_MASK_ROW
from sparkinfer.engine.sequence import BlockId, Sequence, SequenceStatus, SlotId
from sparkinfer.engine.snapshot_pool import SnapshotId
from sparkinfer.errors import RequestError
from sparkinfer.sampling_params import SamplingParams

SwapId = NewType("SwapId", int)  # of one stay in host memory; never used again


class Admission(NamedTuple):
    """What the device keeps for a sequence from the step on that gives it its slot; resets that slot."""

    sampling: SamplingParams             # seed is never None
    prompt_token_ids: list[int]          # read-only
    output_token_ids: tuple[int, ...]    # not empty after a preemption


@dataclass(slots=True, eq=False)
class ScheduledSequence:
    """One sequence's part of a step: tokens [start, start + num_tokens) are computed."""

    sequence: Sequence                   # for Scheduler.update; a ModelRunner asks `is_stale`
    slot: SlotId
    start: int                           # tokens present before this step (num_computed_tokens)
    num_tokens: int                      # > 0; 0: the sequence only samples, its mask was late
    token_ids: list[int] | None          # [num_tokens]; None: one token, the one last sampled in this slot
    first_new_block: int                 # index in the block table of new_blocks[0]
    new_blocks: tuple[BlockId, ...]      # blocks added to the table by this step; usually none
    samples: bool                        # a token is sampled after the last of these tokens
    admitted: Admission | None = None
    mask_row: int = NO_MASK_ROW          # where a MaskSource has the masks of this sequence

    @property
    def position(self) -> int:
        """Of the token that is sampled, if one is."""
        return self.start + self.num_tokens

    @property
    def is_stale(self) -> bool:
        """Whether nobody wants the token that is sampled here: the sequence has ended, or has it without that.

        For any thread to ask; once true, it stays so.
        """
        sequence = self.sequence
        return sequence.status == SequenceStatus.FINISHED or self.position < sequence.num_tokens


class ScoredChunk(NamedTuple):
    """Tokens of a prompt whose log-probabilities are wanted, given those before them in the same step and earlier."""

    row: ScheduledSequence
    first: int                           # token number of the row that predicts token_ids[0]; one more for each other
    token_ids: list[int]                 # the tokens that follow those
    num_top: int                         # alternatives for each


class StateCopy(NamedTuple):
    """Recurrent state of one sequence, between its slot and a snapshot."""

    slot: SlotId
    snapshot: SnapshotId
    restores: bool                       # True: snapshot to slot, before tokens that continue it; False: the other way
    payload: bytes | None = None         # given: what the snapshot becomes, in place of a slot's state


class DiskSave(NamedTuple):
    """A block or a snapshot whose bytes `keep` takes, before anything is overwritten."""

    block: BlockId | None
    snapshot: SnapshotId | None
    keep: Callable[[bytes], None]


class BlockLoad(NamedTuple):
    """Bytes that `keep` was given once, for a block."""

    block: BlockId
    payload: bytes


class SwapOut(NamedTuple):
    """Blocks and recurrent state of a preempted sequence, to be kept in host memory before they are overwritten."""

    sequence: Sequence                   # for Scheduler.fail; a ModelRunner does not look inside
    swap_id: SwapId
    slot: SlotId
    blocks: tuple[BlockId, ...]


class SwapIn(NamedTuple):
    """The way back, into blocks and a slot that the sequence has now; ends the stay."""

    sequence: Sequence
    swap_id: SwapId
    slot: SlotId
    blocks: tuple[BlockId, ...]          # as many as were swapped out


@dataclass(slots=True, eq=False)
class SchedulerOutput:
    """One step is {sequence: number of tokens}; prefill, chunks of it and decode are the same thing."""

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    num_tokens: int = 0                  # equal to the sum of scheduled[i].num_tokens
    num_decode_tokens: int = 0           # of num_tokens; the others belong to prompts
    num_preempted: int = 0
    epoch: int = 0                       # the step's number, counted only with a prefix cache
    disk_saves: list[DiskSave] = field(default_factory=list)     # first of all, from what earlier steps have left
    swap_drops: list[SwapId] = field(default_factory=list)       # then stays that end without a way back
    swap_outs: list[SwapOut] = field(default_factory=list)       # then these, from what earlier steps have left
    block_loads: list[BlockLoad] = field(default_factory=list)   # then these
    state_copies: list[StateCopy] = field(default_factory=list)  # then these, in this order
    swap_ins: list[SwapIn] = field(default_factory=list)         # then these; the forward comes last
    resampled: list[ScheduledSequence] = field(default_factory=list)  # computed already, but their masks were late
    scored: list[ScoredChunk] = field(default_factory=list)      # at most one a row
    ends: list[Sequence] = field(default_factory=list)           # end with this step, for they want no output

    @property
    def rows(self) -> list[ScheduledSequence]:
        return [*self.scheduled, *self.resampled] if self.resampled else self.scheduled

    @property
    def computed(self) -> SchedulerOutput:
        """The step without rows that only sample."""
        if all(row.num_tokens for row in self.scheduled):
            return self
        return replace(self, scheduled=[row for row in self.scheduled if row.num_tokens])

    @property
    def sampling_rows(self) -> list[ScheduledSequence]:
        """The sequences that get a token, in the order of StepResult.token_ids."""
        return [row for row in self.rows if row.samples]


class Logprobs(NamedTuple):
    """Natural logs of the probabilities that the model itself gave, before any sampling control."""

    logprob: float                       # of the token
    top_token_ids: list[int]             # SamplingParams.logprobs of them, most probable first
    top_logprobs: list[float]


@dataclass(slots=True)
class StepResult:
    """Sampled tokens of one step, in the order of SchedulerOutput.sampling_rows."""

    token_ids: list[int]
    logprobs: list[Logprobs | None] | None = None          # None: nobody asked
    nan_rows: list[int] = field(default_factory=list)      # rows whose logits were not finite; token_ids[row] is void
    empty_mask_rows: list[int] = field(default_factory=list)  # rows whose mask allows nothing; token_ids[row] is void
    late_rows: list[int] = field(default_factory=list)     # rows whose mask was not there: to be sampled later
    scores: list[list[Logprobs]] = field(default_factory=list)  # of SchedulerOutput.scored, a list for each


NAN_LOGITS = RequestError(500, "The model's output was not a number.", code="nan_logits")
EMPTY_MASK = RequestError(500, "The grammar allows no token here.", code="empty_mask")


def is_sound(sequence: Sequence) -> bool:
    """Whether what a sequence computed may be used again: it did not fail, or only for its time or its grammar."""
    return sequence.status_code in (0, 504) or sequence.code == EMPTY_MASK.code


def row_errors(output: SchedulerOutput, result: StepResult) -> Iterator[tuple[ScheduledSequence, RequestError]]:
    """Rows that have no token and never will."""
    rows = output.sampling_rows
    yield from ((rows[number], NAN_LOGITS) for number in result.nan_rows if not rows[number].is_stale)
    yield from ((rows[number], EMPTY_MASK) for number in result.empty_mask_rows if not rows[number].is_stale)
    for chunk, scores in zip(output.scored, result.scores):
        if any(math.isnan(score.logprob) for score in scores):
            yield chunk.row, NAN_LOGITS


def mark_late(output: SchedulerOutput, result: StepResult) -> None:
    """Sequences whose mask was late have computed their token, but not sampled it.

    A row behind it that is on its way samples that one, and computes nothing; where there is none, the next step must.
    """
    rows = output.sampling_rows
    for number in result.late_rows:
        sequence = rows[number].sequence
        if rows[number].is_stale:
            continue
        sequence.num_sampled_tokens -= 1
        if not sequence.has_tokens_in_flight:
            sequence.is_late = True
        elif sequence.status == SequenceStatus.RUNNING:
            sequence.num_computed_tokens -= 1

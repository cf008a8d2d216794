"""What a sampled token does to its sequence: it is appended, ends it, or brings with it those that must follow.

Tokens that a grammar leaves no choice about need no sampling: they are taken at once, and the next step computes them
together, as it does the tokens of a prompt. Knows sequences and tokens; never who runs, grammars or devices.
"""

from __future__ import annotations

from collections.abc import Sequence as TokenIds

from sparkinfer.engine.mask_source import NO_MASK_ROW, MaskSource
from sparkinfer.engine.scheduler_output import ScheduledSequence
from sparkinfer.engine.sequence import Sequence, SequenceStatus
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import FinishReason


class OutputTokens:
    """Owned by the Scheduler. forced: asked for tokens that must follow; None: nobody knows any."""

    def __init__(self, block_size: int) -> None:
        self.forced: MaskSource | None = None
        self._block_size = block_size

    def take(self, row: ScheduledSequence, token_id: int, events: StepEvents) -> FinishReason | None:
        """Add what was sampled after `row` to its sequence and to the news; why it ends with that, if it does."""
        sequence = row.sequence
        tokens = self._with_forced(row, token_id)
        for token in tokens:
            if token in sequence.stop_token_ids:
                return FinishReason.STOP
            sequence.output_token_ids.append(token)
            events.sequences.append(sequence)
            events.token_ids.append(token)
            if len(sequence.output_token_ids) >= sequence.max_output_tokens:
                return FinishReason.LENGTH
        if len(tokens) > 1:
            sequence.num_sampled_tokens = len(sequence.output_token_ids)
            sequence.num_prefill_tokens = sequence.num_known_tokens
        return None

    def _with_forced(self, row: ScheduledSequence, token_id: int) -> TokenIds[int]:
        """The token, and those after it that have room in the blocks that the sequence has."""
        sequence = row.sequence
        if self.forced is None or sequence.mask_row == NO_MASK_ROW or not _can_jump(sequence):
            return (token_id,)
        position = row.start + row.num_tokens
        forced = self.forced.forced(sequence.mask_row, position)
        if len(forced) < 2 or forced[0] != token_id:
            return (token_id,)
        room = len(sequence.block_table) * self._block_size - position
        return forced[: max(1, room)]


def _can_jump(sequence: Sequence) -> bool:
    """Whether tokens may come without being sampled: nobody wants to know how likely they were, or counts them."""
    sampling = sequence.sampling
    has_penalties = sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1
    return sequence.status == SequenceStatus.RUNNING and sampling.logprobs is None and not has_penalties

"""What comes of a step's tokens: their sequences take them in, and the world outside the engine hears of them.

Tokens that a grammar leaves no choice about need no sampling: they are taken at once, and the next step computes them
together, as it does the tokens of a prompt; a row on its way that samples one of them is stale. Knows sequences and
token ids; never how they are sent, or grammars.
"""

from __future__ import annotations

from collections.abc import Sequence as TokenIds
from dataclasses import dataclass, field

from sparkinfer.engine.mask_source import NO_MASK_ROW, MaskSource
from sparkinfer.engine.scheduler_output import Logprobs, ScheduledSequence, SchedulerOutput, StepResult
from sparkinfer.engine.sequence import Sequence, SequenceStatus
from sparkinfer.request import FinishReason


@dataclass(slots=True)
class StepEvents:
    """News of one step, to be told in the order of the fields.

    A token that ends its sequence by being a stop token is not among the tokens. Every sequence that was ever
    submitted appears in `finished` exactly once and nowhere after that.
    """

    queued: list[Sequence] = field(default_factory=list)       # choice 0 of each request that passed admission
    sequences: list[Sequence] = field(default_factory=list)    # who got a token in this step
    token_ids: list[int] = field(default_factory=list)         # [len(sequences)]
    logprobs: list[Logprobs | None] | None = None              # [len(sequences)]; None: nobody asked
    scores: list[tuple[Sequence, list[int], list[Logprobs]]] = field(default_factory=list)  # prompt tokens and theirs
    finished: list[Sequence] = field(default_factory=list)     # finish_reason, status_code, code, message are set

    def __bool__(self) -> bool:
        return bool(self.queued or self.sequences or self.scores or self.finished)

    def add_scores(self, output: SchedulerOutput, result: StepResult, now: float) -> None:
        """What a step says of prompts, for sequences that have not ended."""
        for chunk, scores in zip(output.scored, result.scores):
            sequence = chunk.row.sequence
            if sequence.status != SequenceStatus.FINISHED:
                if sequence.first_token_at is None:
                    sequence.first_token_at = now
                self.scores.append((sequence, chunk.token_ids, scores))

    def add_logprobs(self, rows: list[ScheduledSequence], logprobs: list[Logprobs | None] | None) -> None:
        """What belongs to the tokens added last; rows: the step's sampling rows, logprobs: [len(rows)]."""
        if logprobs is None and self.logprobs is None:
            return
        by_sequence = {row.sequence: entry for row, entry in zip(rows, logprobs or ())}
        self.logprobs = self.logprobs or []
        for sequence in self.sequences[len(self.logprobs) :]:
            self.logprobs.append(by_sequence.get(sequence))


class OutputTokens:
    """Owned by the Scheduler. forced: asked for tokens that must follow; None: nobody knows any."""

    def __init__(self, block_size: int) -> None:
        self.forced: MaskSource | None = None
        self._block_size = block_size

    def take(self, sequence: Sequence, token_id: int, events: StepEvents) -> FinishReason | None:
        """Add what was sampled to the sequence and to the news; why it ends with that, if it does."""
        tokens = self._with_forced(sequence, token_id)
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

    def _with_forced(self, sequence: Sequence, token_id: int) -> TokenIds[int]:
        """The token, and those after it that have room in the blocks that the sequence has."""
        if self.forced is None or sequence.mask_row == NO_MASK_ROW or not _can_jump(sequence):
            return (token_id,)
        position = sequence.num_tokens
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

"""What the world outside the engine hears after a step. Knows sequences and token ids; never how they are sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkinfer.engine.scheduler_output import Logprobs, ScheduledSequence, SchedulerOutput, StepResult
from sparkinfer.engine.sequence import Sequence, SequenceStatus


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

"""One step while it is being put together. Knows rows and the policy's limits; never queues or free blocks."""

from __future__ import annotations

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.policy import make_policy
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence, SchedulerOutput, ScoredChunk
from sparkinfer.engine.sequence import BlockId, Sequence


class StepBuilder:
    """Adds rows to `output`; the counters of a sequence advance as soon as its row is added."""

    def __init__(self, config: SchedulerConfig, prompt_grid: int = 0) -> None:
        """prompt_grid: as CacheManager has it; not 0: chunks are multiples of it, but for a prompt's last."""
        self.output = SchedulerOutput()
        self._policy = make_policy(config)
        self._grid = prompt_grid
        self.is_strict = self._policy.is_strict

    def begin(self) -> SchedulerOutput:
        """Start a new step, empty as yet."""
        self.output = SchedulerOutput()
        return self.output

    @property
    def is_full(self) -> bool:
        return self.output.num_tokens >= self._policy.max_step_tokens

    @property
    def has_prompts(self) -> bool:
        return self.output.num_tokens > self.output.num_decode_tokens

    def chunk_tokens(self, is_alone: bool, is_last: bool) -> int:
        """Most tokens that the next prompt may get; is_alone: no other prompt wants a part of this step; is_last: none
        wants what this one leaves."""
        output = self.output
        num_prompt_tokens = output.num_tokens - output.num_decode_tokens
        most = self._policy.chunk_tokens(output.num_decode_tokens, num_prompt_tokens, is_alone, is_last)
        if not self._grid:
            return most
        if most < self._grid and not is_last:
            most = self._policy.chunk_tokens(output.num_decode_tokens, num_prompt_tokens, is_alone)
        return most - most % self._grid

    def add_decode(self, sequence: Sequence, new_blocks: tuple[BlockId, ...]) -> None:
        """The next token of a sequence all of whose known tokens are computed; new_blocks are in its table already."""
        start = sequence.num_computed_tokens
        first_new_block = len(sequence.block_table) - len(new_blocks)
        output = self.output
        output.scheduled.append(
            ScheduledSequence(
                sequence, sequence.slot, start, 1, None, first_new_block, new_blocks, True, None, sequence.mask_row
            )
        )
        output.num_tokens += 1
        output.num_decode_tokens += 1
        sequence.num_computed_tokens = start + 1
        sequence.num_sampled_tokens += 1

    def add_late(self, sequence: Sequence) -> None:
        """Sample again for a sequence whose tokens are all computed."""
        start = sequence.num_computed_tokens
        row = ScheduledSequence(
            sequence, sequence.slot, start, 0, None, len(sequence.block_table), (), True, None, sequence.mask_row
        )
        self.output.resampled.append(row)
        sequence.num_sampled_tokens += 1
        sequence.is_late = False

    def add_chunk(self, sequence: Sequence, most: int) -> None:
        """The next tokens of one prompt, `most` at most; the first chunk brings the device what it keeps in a slot."""
        start = sequence.num_computed_tokens
        remaining = sequence.num_prefill_tokens - start
        if self._grid:
            most = min(most, sequence.num_prompt_tokens - start) if start < sequence.num_prompt_tokens else self._grid
        num_tokens = min(remaining, most)
        samples = num_tokens == remaining and sequence.max_output_tokens > 0
        admitted: Admission | None = None
        first_new_block = len(sequence.block_table)
        if sequence.is_new_in_slot:
            output_token_ids = tuple(sequence.output_token_ids)
            admitted = Admission(sequence.sampling, sequence.prompt_token_ids, output_token_ids)
            first_new_block = 0
            sequence.is_new_in_slot = False
        new_blocks = tuple(sequence.block_table[first_new_block:])
        token_ids = sequence.token_ids(start, start + num_tokens)
        self.output.scheduled.append(
            ScheduledSequence(
                sequence, sequence.slot, start, num_tokens, token_ids, first_new_block, new_blocks, samples, admitted,
                sequence.mask_row,
            )
        )
        self.output.num_tokens += num_tokens
        sequence.num_computed_tokens = start + num_tokens
        sequence.num_sampled_tokens += samples
        if sequence.sampling.prompt_logprobs is not None:
            self._score(sequence, self.output.scheduled[-1], sequence.sampling.prompt_logprobs)
        if num_tokens == remaining and not samples:
            self.output.ends.append(sequence)

    def _score(self, sequence: Sequence, row: ScheduledSequence, num_top: int) -> None:
        """What the row predicts of the rest of the prompt, unless an earlier step did before a preemption."""
        first = max(row.start + 1, sequence.sampling.prompt_logprobs_from, sequence.num_scored_tokens)
        end = min(row.start + row.num_tokens + 1, sequence.num_prompt_tokens)
        if first < end:
            token_ids = sequence.prompt_token_ids[first:end]
            self.output.scored.append(ScoredChunk(row, first - 1 - row.start, token_ids, num_top))
            sequence.num_scored_tokens = end

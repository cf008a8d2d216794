"""What is measured: so many tokens of prompt, or decode steps, behind so many tokens, for so many sequences at once.

Knows numbers only; never models or devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the report.

    is_prefill:  whether num_tokens of prompt are computed, else num_tokens steps of one token
    depth:       tokens of each sequence that are there before
    """

    is_prefill: bool
    num_tokens: int
    depth: int
    num_seqs: int

    @property
    def name(self) -> str:
        """As llama-bench writes it.

        >>> Case(False, 128, 4096, 8).name
        'tg128 x8 @ d4096'
        """
        batch = f" x{self.num_seqs}" if self.num_seqs > 1 else ""
        depth = f" @ d{self.depth}" if self.depth else ""
        return f"{'pp' if self.is_prefill else 'tg'}{self.num_tokens}{batch}{depth}"

    @property
    def first_position(self) -> int:
        """Where the measured tokens begin: decode needs a token to go on from."""
        return self.depth if self.is_prefill else max(1, self.depth)

    @property
    def num_positions(self) -> int:
        """Tokens of one sequence in the end."""
        return self.first_position + self.num_tokens

    @property
    def total_tokens(self) -> int:
        return self.num_seqs * self.num_tokens


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + num_tokens) of sequence number `sequence`, in one step."""

    sequence: int
    start: int
    num_tokens: int


def all_cases(
    prompts: Iterable[int], decodes: Iterable[int], depths: Sequence[int], batches: Iterable[int]
) -> list[Case]:
    """Every combination, 0 tokens left out: batch by batch, depth by depth, prompts first."""
    kinds = [(True, tokens) for tokens in prompts if tokens] + [(False, tokens) for tokens in decodes if tokens]
    return [
        Case(is_prefill, tokens, depth, num_seqs)
        for num_seqs in batches
        for depth in depths
        for is_prefill, tokens in kinds
    ]


def prefill_steps(num_seqs: int, start: int, num_tokens: int, max_step_tokens: int) -> list[list[Chunk]]:
    """Tokens [start, start + num_tokens) of every sequence, cut into steps of max_step_tokens at most.

    >>> [[chunk.num_tokens for chunk in step] for step in prefill_steps(3, 0, 5, 8)]
    [[5, 3], [2, 5]]
    """
    steps: list[list[Chunk]] = [[]]
    room = max_step_tokens
    for sequence in range(num_seqs):
        first, end = start, start + num_tokens
        while first < end:
            if not room:
                steps.append([])
                room = max_step_tokens
            count = min(room, end - first)
            steps[-1].append(Chunk(sequence, first, count))
            first, room = first + count, room - count
    return steps


def decode_steps(case: Case) -> list[list[Chunk]]:
    """The measured steps of a decode case."""
    return [
        [Chunk(sequence, case.first_position + step, 1) for sequence in range(case.num_seqs)]
        for step in range(case.num_tokens)
    ]


def measured_steps(case: Case, max_step_tokens: int) -> list[list[Chunk]]:
    """The steps that are timed."""
    if not case.is_prefill:
        return decode_steps(case)
    return prefill_steps(case.num_seqs, case.depth, case.num_tokens, max_step_tokens)

"""Log-probabilities of tokens that a prompt holds already. Knows rows of hidden states; never sequences.

The logits of a whole chunk of a prompt would not fit beside the weights (2,048 rows of 151,936 are 1.2 GB), so the head
sees a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from sparkinfer.engine.sampler import gather_logprobs
from sparkinfer.engine.scheduler_output import Logprobs

HEAD_ROWS = 64


def score_rows(
    hidden: Tensor, token_ids: list[int], num_top: int, head: Callable[[Tensor], Tensor]
) -> list[Logprobs]:
    """The log-probability of token_ids[i] as row i predicts it, worked out as the sampler does for its choices.

    hidden:  [len(token_ids), hidden_size]
    head:    rows of it -> logits [num_rows, vocab_size] f32
    """
    scores: list[Logprobs] = []
    for start in range(0, len(token_ids), HEAD_ROWS):
        wanted = torch.tensor(token_ids[start : start + HEAD_ROWS], device=hidden.device)
        logits = head(hidden[start : start + HEAD_ROWS])
        scores += _present(gather_logprobs(logits, wanted, [num_top] * len(wanted)))
    return scores


def _present(entries: Iterable[Logprobs | None]) -> Iterator[Logprobs]:
    return (entry for entry in entries if entry is not None)

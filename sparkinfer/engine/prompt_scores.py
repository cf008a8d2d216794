"""Log-probabilities of tokens that a prompt holds already. Knows rows of hidden states; never sequences.

The logits of a whole chunk of a prompt would not fit beside the weights (2,048 rows of 151,936 are 1.2 GB), so the head
sees a few rows at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.sampler import gather_logprobs
from sparkinfer.engine.scheduler_output import Logprobs, ScheduledSequence, SchedulerOutput, ScoredChunk
from sparkinfer.engine.state_pool import StatePool
from sparkinfer.model.forward_batch import ForwardBatch
from sparkinfer.model.registry import Model

HEAD_ROWS = 64


def forward(
    model: Model, batch: ForwardBatch, kv_cache: KVCache, state_pool: StatePool, output: SchedulerOutput
) -> tuple[Tensor, list[list[Logprobs]]]:
    """A step's logits [num_logits, vocab_size] f32, and what it says of its prompts."""
    if not output.scored:
        return model.forward(batch, kv_cache, state_pool), []
    hidden = model.hidden_states(batch, kv_cache, state_pool)
    scores = score_chunks(hidden, output.scheduled, output.scored, model.head)
    return model.head(hidden.index_select(0, batch.logits_indices)), scores


def score_chunks(
    hidden: Tensor, rows: Sequence[ScheduledSequence], scored: Sequence[ScoredChunk], head: Callable[[Tensor], Tensor]
) -> list[list[Logprobs]]:
    """A list for each of `scored`, all of them chunks of `rows`.

    hidden:  [tokens of all rows, hidden_size], row by row
    """
    starts = dict(zip(map(id, rows), itertools.accumulate((row.num_tokens for row in rows), initial=0)))
    scores = []
    for chunk in scored:
        first = starts[id(chunk.row)] + chunk.first
        predicting = hidden[first : first + len(chunk.token_ids)]
        scores.append(score_rows(predicting, chunk.token_ids, chunk.num_top, head))
    return scores


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

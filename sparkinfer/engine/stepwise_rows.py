"""Rows of a step token by token through the decode graphs, tokens known or sampled. Knows steps; never requests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from sparkinfer.engine.cuda_graph import DecodeGraphs, SlotTensors
from sparkinfer.engine.cuda_input_batch import CudaInputBatch
from sparkinfer.engine.scheduler_output import ScheduledSequence
from sparkinfer.model.cuda.pools import DecodePools


class StepwiseRows:
    """Used by the thread that runs steps, in launch order."""

    def __init__(self, graphs: DecodeGraphs, inputs: CudaInputBatch, pools: DecodePools, slots: SlotTensors) -> None:
        self._graphs = graphs
        self._inputs = inputs
        self._pools = pools
        self._last_token_ids = slots.last_token_ids

    def run(
        self, rows: Sequence[ScheduledSequence], places: dict[int, int], logits: Tensor, hidden: Tensor | None = None
    ) -> None:
        """Advance every row by its tokens.

        places:  id of a row that samples -> its row of logits [num_places, vocab_size] f32, which is written
        hidden:  [tokens of all rows, hidden_size] f32, written where given: the residual stream, row by row
        """
        for row in rows:
            if row.start == 0:
                self._pools.reset(row.slot)
        starts = dict(zip(map(id, rows), itertools.accumulate((row.num_tokens for row in rows), initial=0)))
        for offset in range(max((row.num_tokens for row in rows), default=0)):
            active = [row for row in rows if offset < row.num_tokens]
            self._feed(active, offset)
            done = 0
            for found in self._graphs.run(self._inputs.decode_rows(active, offset)):
                group = active[done : done + len(found.logits)]
                done += len(group)
                last = [n for n, row in enumerate(group) if offset == row.num_tokens - 1 and id(row) in places]
                self._scatter(found.logits, [(n, places[id(group[n])]) for n in last], logits)
                if hidden is not None:
                    tokens = [(n, starts[id(row)] + offset) for n, row in enumerate(group)]
                    self._scatter(found.residual, tokens, hidden)

    def _scatter(self, found: Tensor, pairs: list[tuple[int, int]], target: Tensor) -> None:
        """Rows of `found` to rows of `target`, as `pairs` say."""
        if pairs:
            sources, targets = self._inputs.upload(np.array(pairs, np.int64).T.copy())
            target.index_copy_(0, targets, found.index_select(0, sources))

    def _feed(self, rows: Sequence[ScheduledSequence], offset: int) -> None:
        """Put the known tokens start + offset where the graphs look for the one sampled last."""
        known = [(row.slot, row.token_ids[offset]) for row in rows if row.token_ids is not None]
        if known:
            slots, token_ids = self._inputs.upload(np.array(known, np.int64).T.copy())
            self._last_token_ids.index_copy_(0, slots, token_ids)

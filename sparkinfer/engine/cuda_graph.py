"""Decode steps for fixed numbers of rows, captured as CUDA graphs. Knows slots and pools; never sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparkinfer.engine.decode_buckets import bucket_sizes, split_rows
from sparkinfer.model.cuda.decode import DecodeInputs, Workspace
from sparkinfer.model.cuda.pools import DecodePools
from sparkinfer.model.cuda.weights import DecodeWeights
from sparkinfer.model.cuda.wide_decode import decode_step

WARM_UP_RUNS = 2  # the first compiles
LARGEST_BUCKET = 128  # rows; the most that the products take. Wider steps run several graphs in turn.
LARGEST_INTERPRETED = 8  # on a CPU, where the kernels for more do not run
DETERMINISTIC_BUCKET = 8  # the only one there is where bits must not depend on the number of rows


@dataclass(frozen=True, slots=True)
class SlotTensors:
    """What a decode step finds under a slot number, on the device.

    last_token_ids:  [num_slots] int64, sampled last; the step replaces it by its greedy choice
    block_tables:    [num_slots, max_blocks] int32; the last row names the dummy block
    """

    last_token_ids: Tensor
    block_tables: Tensor


@dataclass(frozen=True, slots=True)
class GraphRows:
    """What rows of a graph came to, until its next run.

    results:  [2, num_rows] int64: greedy token ids; 1 where the row is finite
    logits:   [num_rows, vocab_size] f32; residual: [num_rows, hidden_size] f32, before the last norm
    """

    results: Tensor
    logits: Tensor
    residual: Tensor


class DecodeGraph:
    """A step of `size` rows at fixed addresses; rows that a caller leaves over work on the dummy slot.

    `run` only enqueues. On a CPU device nothing is captured: every run launches the kernels anew (tests).
    """

    def __init__(
        self, weights: DecodeWeights, pools: DecodePools, slots: SlotTensors, size: int, workspace: Workspace
    ) -> None:
        device = slots.last_token_ids.device
        self.size = size
        self._slots = slots
        self._packed = torch.zeros(3, size, dtype=torch.int64, device=device)  # slot, position, context length
        self._step = decode_step(weights, size, device, pdl=device.type == "cuda", workspace=workspace)
        self._vocab_size = weights.output.num_rows
        self._results = torch.zeros(2, size, dtype=torch.int64, device=device)
        width = slots.block_tables.shape[1]
        self._inputs = DecodeInputs(
            input_ids=torch.zeros(size, dtype=torch.int64, device=device),
            positions=self._packed[1],
            state_slots=self._packed[0],
            block_tables=torch.zeros(size, width, dtype=torch.int32, device=device),
            context_lens=torch.ones(size, dtype=torch.int32, device=device),
            block_size=pools.block_size,
            kv=pools.kv,
            kv_scales=pools.kv_scales,
            conv=pools.conv,
            state=pools.state,
            held=pools.held,
        )
        self._dummy = dummy_rows(size, slots.last_token_ids.shape[0] - 1)
        self._graph: torch.cuda.CUDAGraph | None = None

    def rows(self, num_rows: int) -> GraphRows:
        """The first rows of the last run."""
        return GraphRows(self._results[:, :num_rows], self._step.logits[:num_rows], self._step.residual[:num_rows])

    def capture(self, pool: tuple[int, int] | None) -> tuple[int, int] | None:
        """Compile, warm up on the dummy slot and capture on the current stream; graphs of one pool share memory."""
        if not self._packed.is_cuda:
            return None
        self._upload(self._dummy)
        for _ in range(WARM_UP_RUNS):
            self._launch()
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        with torch.cuda.graph(graph, pool, stream):  # type: ignore[arg-type]  # the pair that pool() says it returns
            self._launch()
        self._graph = graph
        return graph.pool()

    def run(self, rows: npt.NDArray[np.int64]) -> None:
        """Advance sequences by their last sampled tokens.

        rows: [3, num_rows] slot, position, context length with the new token; num_rows <= size
        """
        if rows.shape[1] < self.size:
            rows = np.concatenate((rows, self._dummy[:, rows.shape[1] :]), axis=1)
        self._upload(rows)
        if self._graph is None:
            self._launch()
        else:
            self._graph.replay()

    def _upload(self, rows: npt.NDArray[np.int64]) -> None:
        source = torch.from_numpy(np.ascontiguousarray(rows))
        if self._packed.is_cuda:
            source = source.pin_memory()
        self._packed.copy_(source, non_blocking=True)

    def _launch(self) -> None:
        inputs, slots = self._inputs, self._slots
        inputs.context_lens.copy_(self._packed[2])
        torch.index_select(slots.block_tables, 0, inputs.state_slots, out=inputs.block_tables)
        torch.index_select(slots.last_token_ids, 0, inputs.state_slots, out=inputs.input_ids)
        self._step.run(inputs)
        # A row of NaN has no best token: what is kept must still be one that the next step can look up.
        torch.clamp(inputs.input_ids, 0, self._vocab_size - 1, out=self._results[0])
        slots.last_token_ids.index_copy_(0, inputs.state_slots, self._results[0])
        self._results[1].copy_(torch.isfinite(self._step.residual.sum(-1)))


class DecodeGraphs:
    """A graph per bucket; a step of any number of rows runs one after another of them."""

    def __init__(
        self, weights: DecodeWeights, pools: DecodePools, slots: SlotTensors, is_deterministic: bool = False
    ) -> None:
        """is_deterministic: a row's bits depend on its sequence alone"""
        num_slots = slots.last_token_ids.shape[0] - 1
        device = slots.last_token_ids.device
        largest = LARGEST_BUCKET if device.type == "cuda" else LARGEST_INTERPRETED
        self._sizes = [DETERMINISTIC_BUCKET] if is_deterministic else bucket_sizes(num_slots, largest)
        workspace = Workspace.empty(weights, self._sizes[-1], device)
        self._graphs = {size: DecodeGraph(weights, pools, slots, size, workspace) for size in self._sizes}

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """Prepare every size on the current stream; progress(done, total)."""
        pool = None
        for done, graph in enumerate(reversed(self._graphs.values()), 1):
            pool = graph.capture(pool)
            progress(done, len(self._graphs))

    def run(self, rows: npt.NDArray[np.int64]) -> Iterator[GraphRows]:
        """Run rows [3, num_rows] (DecodeGraph.run) bucket by bucket; yields the next rows, which hold until those
        after them are asked for.
        """
        for run, size in split_rows(rows.shape[1], self._sizes):
            graph = self._graphs[size]
            graph.run(rows[:, run.start : run.stop])
            yield graph.rows(len(run))


def dummy_rows(size: int, dummy_slot: int) -> npt.NDArray[np.int64]:
    """[3, size]: rows that write nothing but the dummy's slot and block."""
    return np.repeat(np.array([[dummy_slot], [0], [1]], np.int64), size, axis=1)

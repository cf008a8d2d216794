"""Chunks of prompts as CUDA graphs of fixed sizes: a thousand launches for the price of one. Knows rows of a step;
never sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.spans import Spans
from sparkinfer.engine.cuda_input_batch import CudaInputBatch, PackedChunks
from sparkinfer.engine.scheduler_output import ScheduledSequence
from sparkinfer.model.cuda.prefill import Prefill, PrefillBatch

# Larger steps keep the device busy for longer than it takes to launch them.
GRAPH_SIZES = (64, 128, 256, 512, 768, 1024, 1536, 2048)
TIMED_RUNS = 3
MAX_SEQUENCES = 16  # of a graph, what fills it up counted


class PromptGraph:
    """A step of `size` tokens at fixed addresses. On a CPU nothing is captured: every run computes anew (tests)."""

    def __init__(self, prefill: Prefill, inputs: CudaInputBatch, size: int) -> None:
        self.size = size
        self._prefill = prefill
        self._numbers, *self._tables = [inputs.upload(array) for array in _arrays(inputs.pack([], size, MAX_SEQUENCES))]
        input_ids, positions, slot_mapping = self._numbers
        sequences, chunks, tiles = self._tables
        self._batch = PrefillBatch(input_ids, positions, slot_mapping, Spans(sequences, chunks, tiles,
                                                                             inputs.block_tables))
        self._residual: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def capture(self, pool: tuple[int, int] | None) -> tuple[int, int] | None:
        """Compile and warm up on the dummy slot, then capture on the current stream; graphs of one pool share
        memory."""
        if not self._numbers.is_cuda:
            return None
        self._prefill.settle(self.size)
        self._prefill.run(self._batch)
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        with torch.cuda.graph(graph, pool, stream):  # type: ignore[arg-type]  # the pair that pool() says it returns
            self._residual = self._prefill.run(self._batch)
        self._graph = graph
        return graph.pool()

    def measure(self) -> float | None:
        """Milliseconds of a run on the dummy slot, the shortest of a few."""
        if self._graph is None:
            return None
        times: list[float] = []
        for _ in range(TIMED_RUNS):
            # torch leaves events unannotated
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            self._graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return min(times)

    def run(self, packed: PackedChunks) -> Tensor:
        """[size, hidden_size] f32, the residual stream of each row, until another graph runs."""
        for target, source in zip((self._numbers, *self._tables), _arrays(packed)):
            _copy(target, source)
        if self._graph is None:
            return self._prefill.run(self._batch)
        self._graph.replay()
        assert self._residual is not None
        return self._residual


class PromptGraphs:
    """Runs a step's chunks, as a graph where one is large enough for them."""

    def __init__(self, prefill: Prefill, inputs: CudaInputBatch, sizes: Sequence[int]) -> None:
        """sizes: ascending; those beyond what the dummy slot has room for are left out."""
        self._prefill = prefill
        self._inputs = inputs
        self._graphs = [PromptGraph(prefill, inputs, size) for size in sizes if size <= inputs.max_model_len]

    def capture(self, progress: Callable[[int, int], None]) -> dict[int, float]:
        """Prepare every size on the current stream, the largest first; progress(done, total).

        returns what each takes: tokens -> ms; nothing on a CPU
        """
        pool = None
        for done, graph in enumerate(reversed(self._graphs), 1):
            pool = graph.capture(pool)
            progress(done, len(self._graphs))
        return {graph.size: ms for graph in self._graphs if (ms := graph.measure()) is not None}

    def run(self, rows: Sequence[ScheduledSequence]) -> Tensor:
        """Compute chunks of prompts: [num_tokens, hidden_size] f32, their rows end to end, until the next run."""
        num_tokens = sum(row.num_tokens for row in rows)
        graph = next((graph for graph in self._graphs if graph.size >= num_tokens), None)
        if graph is None or len(rows) >= MAX_SEQUENCES:
            return self._prefill.run(self._inputs.prefill_batch(rows))
        return graph.run(self._inputs.pack(rows, graph.size, MAX_SEQUENCES))[:num_tokens]


def _arrays(packed: PackedChunks) -> list[npt.NDArray[np.signedinteger]]:
    return [packed.numbers, packed.sequences, packed.chunks, packed.tiles]


def _copy(target: Tensor, source: npt.NDArray[np.signedinteger]) -> None:
    tensor = torch.from_numpy(source)
    target.copy_(tensor.pin_memory() if target.is_cuda else tensor, non_blocking=True)

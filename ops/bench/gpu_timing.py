"""Timing of GPU work: CUDA-graph replays and medians. Knows no kernel."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch


def capture(function: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """`function` as a CUDA graph, after two runs that compile and warm it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
        function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def graph_us(function: Callable[[], object], repeats: int = 20) -> float:
    """Median microseconds of one replay of `function` captured as a graph."""
    return replay_us(capture(function), repeats)


def replay_us(graph: torch.cuda.CUDAGraph, repeats: int = 20) -> float:
    """Median microseconds of one replay."""
    times = []
    graph.replay()
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def rotated_us(functions: Sequence[Callable[[], object]], rounds: int = 4) -> float:
    """Median microseconds of one call when `functions` (each on data of its own) run in turn."""

    def run() -> None:
        for _ in range(rounds):
            for function in functions:
                function()

    return graph_us(run) / (rounds * len(functions))

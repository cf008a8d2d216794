"""Chunks of prompts on one GPU at real shapes and random weights: the time of a few layers, as graphs and as launched
one by one, and what it is made of. Tokens a second are for all layers, the output head left out.

    python -m ops.bench.gpu_prefill 35B-A3B --chunks 512 4096 4096@28672 --profile
"""

from __future__ import annotations

import argparse
import functools
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
import torch

from kernels.spans import Spans, pack_spans
from ops.bench.gpu_timing import capture, replay_us
from sparkinfer.engine.prompt_graphs import GRAPH_SIZES
from sparkinfer.model.cuda.pools import DecodePools
from sparkinfer.model.cuda.prefill import Prefill, PrefillBatch
from tests.kernels.random_model import SHAPES, random_inputs, random_model

BLOCK_SIZE = 16
DEVICE = torch.device("cuda")


def make_batch(num_tokens: int, start: int, vocab: int, tables: torch.Tensor) -> PrefillBatch:
    """One sequence on slot 0, whose blocks lie as its table says."""
    positions = torch.arange(start, start + num_tokens, device=DEVICE)
    rows = tables[0, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
    packed = pack_spans([(0, start, num_tokens)], 1, num_tokens)
    sequences, chunks, tiles = (torch.from_numpy(np.ascontiguousarray(table)).to(DEVICE) for table in packed)
    ids = torch.randint(0, vocab, (num_tokens,), device=DEVICE)
    return PrefillBatch(ids, positions, rows, Spans(sequences, chunks, tiles, tables))


def profile(prefill: Prefill, batch: PrefillBatch, layers: int) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        prefill.run(batch)
        torch.cuda.synchronize()
    times: dict[str, list[float]] = defaultdict(list)
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name].append(event.device_time)
    total = sum(map(sum, times.values()))
    print(f"    {sum(map(len, times.values()))} launches, kernels {total / 1e3:.2f} ms of {layers} layers")
    for name, each in sorted(times.items(), key=lambda item: -sum(item[1]))[:22]:
        print(f"    {name[:84]:84} {len(each):4} x {sum(each) / len(each):8.1f} us = {sum(each) / 1e3:7.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--chunks", nargs="+", default=["512", "2048", "4096", "4096@28672"], help="tokens[@start]")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--fp8", action="store_true", help="as [engine] prefill_dtype has it")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    sizes = [tuple(map(int, (chunk + "@0").split("@")[:2])) for chunk in options.chunks]
    weights = replace(random_model(shape, "cuda", num_layers=options.layers), fp8_prompts=options.fp8)
    context = max(sum(size) for size in sizes)
    inputs = random_inputs(shape, weights, 1, context, "cuda", is_int8=options.int8)
    pools = DecodePools(BLOCK_SIZE, inputs.kv, inputs.kv_scales, inputs.conv, inputs.state, inputs.held, ())
    with torch.inference_mode():
        prefill = Prefill(weights, pools, DEVICE, options.deterministic)
        for num_tokens, start in sizes:
            batch = make_batch(num_tokens, start, shape.vocab, inputs.block_tables)
            prefill.settle(min(num_tokens, GRAPH_SIZES[-1]))
            prefill.run(batch)
            torch.cuda.synchronize()
            started = time.perf_counter()
            finite = bool(prefill.run(batch).isfinite().all())
            enqueued = time.perf_counter() - started
            us = replay_us(capture(functools.partial(prefill.run, batch)), 5)
            scale = shape.num_layers / options.layers
            print(f"{options.shape} {num_tokens} tokens from {start}: graph {us / 1e3 * scale:.1f} ms, launched "
                  f"{enqueued * 1e3 * scale:.1f} ms for {shape.num_layers} layers, {num_tokens / us / scale * 1e6:.0f} "
                  f"tok/s{'' if finite else ', NOT FINITE'}", flush=True)
            if options.profile:
                profile(prefill, batch, options.layers)


if __name__ == "__main__":
    main()

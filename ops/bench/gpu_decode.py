"""Checks, then times, decode steps of full-size models with random weights on the card that is there.

    python -m ops.bench.gpu_decode [--models 35B-A3B,27B,30B-A3B] [--batches 1,2,4,8] [--contexts 1,4096,16384,32768]
                                   [--no-pdl] [--profile]

A model is timed only after a few of its layers, at full width, agreed with the float32 composition.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import torch

from kernels.held_updates import HELD
from ops.bench.gpu_timing import capture, replay_us
from sparkinfer.bench.bandwidth import copy_bandwidth
from sparkinfer.model.cuda.decode import DecodeInputs, DecodeStep
from sparkinfer.model.cuda.weights import AttentionLayer, DecodeWeights, ExpertFFN
from sparkinfer.model.cuda.wide_decode import decode_step
from tests.kernels.activations import relative_error
from tests.kernels.random_model import SHAPES, ModelShape, cloned, random_inputs, random_model, settled_states
from tests.kernels.step_agreement import agreement

TOLERANCE = 2e-2  # relative error of each row's logits after four layers; a flipped int8 rounding moves them by 1e-3
DEVICE = torch.device("cuda")


def step_bytes(weights: DecodeWeights, shape: ModelShape, num_seqs: int, context_len: int) -> float:
    """Bytes one step must touch: weights once (experts: those that random routing meets), KV once, states read once
    and written by one step in HELD."""
    total = float(weights.output.num_bytes)
    met = 0.0
    if shape.experts:
        met = shape.experts * (1 - (1 - shape.top_k / shape.experts) ** num_seqs) / shape.experts
    state_bytes = num_seqs * shape.v_heads * shape.d**2 * 4 * (1 + 1 / HELD)
    for layer in weights.layers:
        mixer = layer.mixer
        total += mixer.output.num_bytes
        if isinstance(mixer, AttentionLayer):
            total += sum(w.num_bytes for w in mixer.qkv)
            total += num_seqs * context_len * 4 * shape.heads.num_kv_heads * shape.heads.head_dim
        else:
            total += sum(w.num_bytes for w in mixer.projections) + state_bytes
        ffn = layer.ffn
        if isinstance(ffn, ExpertFFN):
            total += ffn.router.num_bytes + sum(w.num_bytes for w in ffn.shared or ())
            total += met * (ffn.gate.num_bytes + ffn.up.num_bytes + ffn.down.num_bytes)
        else:
            total += ffn.gate.num_bytes + ffn.up.num_bytes + ffn.down.num_bytes
    return total


def check(name: str, num_seqs: int, pdl: bool, num_layers: int = 4) -> str:
    """A line that says how well full-width layers agree with the reference; it ends in RED when they do not."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(num_seqs)
    shape = replace(SHAPES[name], vocab=8192)  # the reference holds whole matrices in float32
    weights = random_model(shape, "cuda", num_layers=num_layers)
    inputs = random_inputs(shape, weights, num_seqs, 333, "cuda")
    found = agreement(weights, inputs, lambda part, copy: decode_step(part, num_seqs, DEVICE, pdl).run(copy))
    step = decode_step(weights, num_seqs, DEVICE, pdl)
    graph_inputs = cloned(inputs)
    graph = capture(lambda: step.run(graph_inputs))
    step.logits.fill_(torch.nan)
    for name_of_pool in ("input_ids", "conv", "state", "held", "kv"):
        _restore(getattr(graph_inputs, name_of_pool), getattr(inputs, name_of_pool))
    graph.replay()
    torch.cuda.synchronize()
    errors = torch.maximum(found.row_errors, (step.logits - found.logits).norm(dim=1) / found.logits.norm(dim=1))
    pairs = zip(settled_states(graph_inputs), settled_states(found.inputs), strict=True)
    state_error = max((relative_error(a, b) for a, b in pairs), default=0.0)
    is_good = bool((errors < TOLERANCE).all()) and state_error < TOLERANCE and torch.equal(
        graph_inputs.input_ids, step.logits.argmax(-1))
    return (f"{name} batch {num_seqs}: rows {errors.median():.1e} at the median, {errors.max():.1e} at most, ties "
            f"{found.num_ties}, states {state_error:.1e} {'ok' if is_good else 'RED'}")


def _restore(target: object, source: object) -> None:
    if isinstance(target, torch.Tensor):
        target.copy_(source)
    elif isinstance(target, tuple) and isinstance(source, tuple):
        for t, s in zip(target, source, strict=True):
            _restore(t, s)


def profile(step: DecodeStep, inputs: DecodeInputs, wall_us: float) -> None:
    """Kernel time by name over one step, from the profiler (which adds to short kernels)."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        step.run(inputs)
        torch.cuda.synchronize()
    sums: dict[str, list[float]] = defaultdict(list)
    for event in trace.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            sums[re.sub(r"_kernel.*", "", event.name).strip("_")].append(event.device_time)
    total = sum(map(sum, sums.values()))
    print(f"    kernels {total:.0f} us in {sum(map(len, sums.values()))} launches, step {wall_us:.0f} us")
    for name, times in sorted(sums.items(), key=lambda item: -sum(item[1])):
        print(f"    {name:24} {len(times):4} x {sum(times) / len(times):7.2f} us = {sum(times):8.1f} us")


def time_model(name: str, batches: list[int], contexts: list[int], pdl: bool, with_profile: bool,
               bandwidth: float) -> None:
    shape = SHAPES[name]
    started = time.perf_counter()
    weights = random_model(shape, "cuda")
    torch.cuda.synchronize()
    print(f"{name}: {torch.cuda.memory_allocated() / 1e9:.1f} GB, made in {time.perf_counter() - started:.1f} s",
          flush=True)
    for num_seqs in batches:
        step = decode_step(weights, num_seqs, DEVICE, pdl)
        for context_len in contexts:
            inputs = random_inputs(shape, weights, num_seqs, context_len, "cuda")
            us = replay_us(capture(lambda step=step, inputs=inputs: step.run(inputs)))
            bound = step_bytes(weights, shape, num_seqs, context_len) / bandwidth * 1e6
            print(f"  batch {num_seqs} context {context_len}: {us:.0f} us a step, {num_seqs / us * 1e6:.0f} tok/s, "
                  f"{bound / us:.0%} of the bound", flush=True)
            if with_profile:
                profile(step, inputs, us)
            del inputs
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="35B-A3B,27B,30B-A3B")
    parser.add_argument("--batches", default="1,2,4,8")
    parser.add_argument("--contexts", default="1,4096,16384,32768")
    parser.add_argument("--no-pdl", action="store_true")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    names = arguments.models.split(",")
    batches = [int(x) for x in arguments.batches.split(",")]
    contexts = [int(x) for x in arguments.contexts.split(",")]
    pdl = not arguments.no_pdl
    jobs = [(name, batch, pdl) for name in names for batch in batches]
    with ProcessPoolExecutor(min(5, len(jobs)), mp_context=get_context("spawn")) as pool:
        lines = list(pool.map(check, *zip(*jobs, strict=True)))
    print(*lines, sep="\n", flush=True)
    if any(line.endswith("RED") for line in lines):
        sys.exit("a check is red: no speeds")
    bandwidth = copy_bandwidth(torch.device("cuda"))
    print(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e12:.2f} TB/s, pdl {pdl}", flush=True)
    for name in names:
        time_model(name, batches, contexts, pdl, arguments.profile, bandwidth)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

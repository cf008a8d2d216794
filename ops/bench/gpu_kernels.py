"""Times tiles of each decode kernel on a full-size model's own weights, one launch per layer in turn.

    python -m ops.bench.gpu_kernels [--models 35B-A3B,27B,30B-A3B] [--batch 1]

The answers belong in the `*_tile` functions beside the kernels, the figures in docs/performance.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from kernels.gated_delta_step import gated_delta_step
from kernels.launch import block_tile, row_tile
from kernels.moe_down import moe_down
from kernels.moe_gate_up import moe_gate_up
from kernels.paged_decode import AttentionTile, PagedKV, paged_decode
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight
from kernels.quant_gemv import quant_gemv
from kernels.quant_gemv_residual import quant_gemv_residual
from kernels.quant_swiglu import quant_swiglu
from ops.bench.gpu_timing import rotated_us
from sparkinfer.model.cuda.decode import DecodeStep
from sparkinfer.model.cuda.weights import DecodeWeights, DeltaNetLayer, DenseFFN, ExpertFFN
from tests.kernels.activations import random_activation
from tests.kernels.random_model import SHAPES, random_inputs, random_model

Launch = Callable[[], object]
Variants = dict[str, list[Launch]]
ROWS = [(4, 1, 4), (4, 2, 2), (4, 2, 4), (4, 4, 2), (8, 2, 4), (2, 2, 4), (8, 1, 4)]  # warps, rows a thread, depth
BLOCKS = [(4, 32, 4), (4, 32, 2), (4, 32, 1), (2, 32, 2), (8, 32, 2), (8, 32, 4), (8, 64, 2), (8, 64, 4),
          (2, 32, 4), (4, 64, 2), (4, 64, 4)]
EXPERTS = [(4, 32, 2), (4, 64, 1), (8, 32, 1), (8, 32, 2), (8, 64, 1), (16, 32, 2)]  # warps, chunks, depth
ATTENTION = [(32, 4, 64), (32, 8, 64), (64, 4, 64), (64, 8, 64), (64, 4, 16), (64, 8, 16)]  # as AttentionTile
EPS = 1e-6


def _gemv(groups: list[list[QuantWeight]], x: QuantActivation) -> Variants:
    found: Variants = {}
    out = torch.empty(x.num_tokens, sum(w.num_rows for w in groups[0]), device="cuda")
    first = groups[0][0]
    for warps, rows, depth in ROWS:
        chunks = 32 * warps if first.format == QuantFormat.F32 else 32
        tile = row_tile(first.format, first.num_cols, warps, rows, depth, chunks)
        label = f"w{warps} r{rows} d{tile.depth} c{tile.chunks}"
        found[label] = [lambda g=g, tile=tile: quant_gemv(x, g, EPS, out=out, tile=tile, pdl=True) for g in groups]
    found["as chosen"] = [lambda g=g: quant_gemv(x, g, EPS, out=out, pdl=True) for g in groups]
    return found


def _residual(weights: list[QuantWeight], x: QuantActivation, group: int, step: DecodeStep) -> Variants:
    found: Variants = {}
    norm = torch.ones(weights[0].num_rows, device="cuda")
    for warps, chunks, depth in BLOCKS:
        tile = block_tile(weights[0].format, weights[0].num_cols, warps, chunks, depth)
        found[f"w{tile.num_warps} c{tile.chunks} d{tile.depth}"] = [
            lambda w=w, tile=tile: quant_gemv_residual(x, w, step.residual, norm, step.hidden, group, EPS, tile,
                                                       pdl=True)
            for w in weights
        ]
    return found


def _attention(name: str, weights: DecodeWeights, num_seqs: int, step: DecodeStep) -> dict[str, Variants]:
    found: dict[str, Variants] = {}
    heads = weights.heads
    projected = torch.randn(num_seqs, heads.row, device="cuda")
    out = random_activation(num_seqs, heads.num_q_heads * heads.head_dim, "cuda")
    for context_len in (1, 4096, 16384, 32768):
        inputs = random_inputs(SHAPES[name], weights, num_seqs, context_len, "cuda")
        caches = [(kv, layer.mixer.norms) for kv, layer in zip(inputs.kv, weights.layers,
                                                               strict=True) if kv is not None]
        found[f"attention at {context_len}"] = {
            f"t{tile} w{warps} x{splits}": [
                lambda kv=kv, norms=norms, inputs=inputs, tile=tile, warps=warps, splits=splits: paged_decode(
                    projected, inputs.positions,
                    PagedKV(*kv, None, inputs.block_tables, inputs.context_lens, inputs.block_size), heads,
                    weights.inv_freq, norms, step.workspace.attention, out, EPS,
                    AttentionTile(tile, warps, splits, 128), pdl=True)
                for kv, norms in caches
            ]
            for tile, warps, splits in ATTENTION
        }
    return found


def families(name: str, weights: DecodeWeights, num_seqs: int) -> dict[str, Variants]:
    """family name -> tile's label -> launches, one per layer."""
    shape = SHAPES[name]
    step = DecodeStep(weights, num_seqs, torch.device("cuda"))
    inputs = random_inputs(shape, weights, num_seqs, 100, "cuda")
    step.run(inputs)
    hidden = random_activation(num_seqs, shape.hidden, "cuda")
    norm = torch.ones(shape.hidden, device="cuda")
    found: dict[str, Variants] = {}
    mixers = [layer.mixer for layer in weights.layers]
    ffns = [layer.ffn for layer in weights.layers]
    deltas = [(i, m) for i, m in enumerate(mixers) if isinstance(m, DeltaNetLayer)]
    inner = random_activation(num_seqs, mixers[0].output.num_cols, "cuda")
    found["output"] = _residual([m.output for m in mixers], inner, 128 if deltas else 0, step)
    if deltas:
        kinds = [[w.format for w in m.projections] for _, m in deltas]
        alike = [list(m.projections) for (_, m), kind in zip(deltas, kinds, strict=True) if kind == kinds[0]]
        found["delta_net input"] = _gemv(alike, hidden)
        rows = sum(w.num_rows for w in deltas[0][1].projections)
        projected = torch.randn(num_seqs, rows, device="cuda")
        out = random_activation(num_seqs, shape.v_heads * shape.d, "cuda")
        found["delta_net step"] = {
            f"w{warps}": [
                lambda i=i, m=m, warps=warps: gated_delta_step(
                    projected, m.small, inputs.conv[i], inputs.state[i], inputs.held[i], inputs.state_slots,
                    inputs.positions, out, warps, pdl=True)
                for i, m in deltas
            ]
            for warps in (1, 2, 4, 8)
        }
    else:
        kinds = [[w.format for w in m.qkv] for m in mixers]
        found["attention input"] = _gemv([list(m.qkv) for m, k in zip(mixers, kinds, strict=True) if k == kinds[0]],
                                         hidden)
    found |= _attention(name, weights, num_seqs, step)
    experts = [f for f in ffns if isinstance(f, ExpertFFN)]
    if experts:
        found["router"] = _gemv([[f.router] for f in experts], hidden)
        logits = torch.randn(num_seqs, -(-experts[0].router.num_rows // 16) * 16, device="cuda")
        slots = shape.top_k + shape.has_shared
        h = random_activation(num_seqs * slots, shape.ffn, "cuda")
        ids = torch.randint(0, shape.experts, (num_seqs, shape.top_k), dtype=torch.int32, device="cuda")
        view = logits[:, : experts[0].router.num_rows]
        found["gate_up"], found["down"] = {}, {}
        alike = [f for f in experts if f.down.format == experts[0].down.format]
        for warps, chunks, depth in EXPERTS:
            tile = block_tile(shape.gate_up, shape.hidden, warps, chunks, depth)
            found["gate_up"][f"w{warps} c{chunks} d{depth}"] = [
                lambda f=f, tile=tile: moe_gate_up(hidden, view, f.gate, f.up, f.shared and f.shared[:2], ids, h, EPS,
                                                   tile, pdl=True)
                for f in experts
            ]
            if depth == 1 or (warps, chunks) in ((4, 32), (16, 32)):
                tile = block_tile(alike[0].down.format, 8 * shape.ffn, warps, chunks)
                found["down"][f"w{warps} c{tile.chunks}"] = [
                    lambda f=f, tile=tile: moe_down(h, ids, view, f.down, f.shared and f.shared[2], step.residual, norm,
                                                    step.hidden, tile, pdl=True)
                    for f in alike
                ]
    dense = [f for f in ffns if isinstance(f, DenseFFN)]
    if dense:
        h = random_activation(num_seqs, shape.ffn, "cuda")
        found["swiglu"] = {}
        for warps, chunks, depth in BLOCKS:
            tile = block_tile(shape.gate_up, shape.hidden, warps, chunks, depth)
            found["swiglu"][f"w{warps} c{tile.chunks} d{tile.depth}"] = [
                lambda f=f, tile=tile: quant_swiglu(hidden, f.gate, f.up, h, EPS, tile, pdl=True) for f in dense
            ]
        for kind in (QuantFormat.Q4_K, QuantFormat.Q6_K):
            downs = [f.down for f in dense if f.down.format == kind]
            found[f"dense down {kind.name}"] = _residual(downs, h, 0, step) if downs else {}
    if len(weights.layers) > 4:
        found["head"] = _gemv([[weights.output]], hidden)
    return found


def compile_family(name: str, num_seqs: int, family: str) -> None:
    weights = random_model(SHAPES[name], "cuda", num_layers=4)
    for launches in families(name, weights, num_seqs).get(family, {}).values():
        launches[0]()
    torch.cuda.synchronize()


FAMILIES = ["output", "delta_net input", "delta_net step", "attention input", "attention at 1", "router", "gate_up",
            "down", "swiglu",
            "dense down Q4_K", "dense down Q6_K"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="35B-A3B,27B,30B-A3B")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--families", default=",".join([*FAMILIES, "head", "attention at 4096", "attention at 32768"]))
    arguments = parser.parse_args()
    names, wanted = arguments.models.split(","), arguments.families.split(",")
    with ProcessPoolExecutor(14, mp_context=get_context("spawn")) as pool:
        jobs = [(name, arguments.batch, family) for name in names for family in FAMILIES
                if family in wanted]
        list(pool.map(compile_family, *zip(*jobs, strict=True)))
    for name in names:
        weights = random_model(SHAPES[name], "cuda")
        for family, variants in families(name, weights, arguments.batch).items():
            if family not in wanted:
                continue
            times = {label: rotated_us(launches, 2) for label, launches in variants.items()}
            line = "  ".join(f"{label}: {us:.2f}" for label, us in sorted(times.items(), key=lambda item: item[1]))
            print(f"{name} {family} | {line}", flush=True)
        del weights
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

"""Compiles kernels that no decode step launches, for the targets named. A process of its own, as offline_compile."""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.jit import mangle_type

from kernels.combine_experts import combine_experts
from kernels.delta_rows import ProjectedParts, row_width
from kernels.draw_tokens import DrawFilters, draw_tokens
from kernels.expert_rows import STAGES as EXPERT_STAGES
from kernels.expert_rows import _expert_rows_kernel
from kernels.fp8_products import gate_up_rows, quantize_rows, quantize_weights
from kernels.many_rows import FORMATS, _many_rows_kernel, bulk_copies, pairs
from kernels.mask_logits import mask_logits
from kernels.normed_rows import NormedRows, add_parts_normed, combine_experts_normed
from kernels.pack_halves import pack_halves, pack_rows
from kernels.plain_rows import plain_rows
from kernels.quant_embedding import quant_embedding
from kernels.quant_format import QuantFormat
from kernels.quant_gemv import quant_gemv
from kernels.quant_gemv_residual import quant_gemv_residual
from kernels.quant_swiglu import quant_swiglu
from kernels.route_tokens import route_tokens
from kernels.router_choice import router_choice
from kernels.short_runs import LONGEST
from kernels.sort_tokens import Runs, sort_tokens
from kernels.split_sums import add_parts, add_parts_residual, add_parts_swiglu, add_parts_swiglu_packed
from kernels.streamed_products import STAGES as RING_STAGES
from kernels.streamed_products import WARPS, _streamed_residual_kernel, _streamed_swiglu_kernel
from kernels.swiglu_rows import _swiglu_rows_kernel
from kernels.wide_delta_step import wide_delta_step
from tests.kernels.activations import poisoned_activation
from tests.kernels.delta_layer import EPS, DeltaLayer
from tests.kernels.offline_compile import AMD, NVIDIA, Recorder
from tests.kernels.random_weights import random_weight


def draws() -> None:
    ones = torch.ones(2)
    filters = DrawFilters(ones.long(), ones, ones, has_top_k=True, has_top_p=True)
    for some in (filters, None):
        draw_tokens(torch.zeros(2, 5000), ones, torch.zeros(2, 2, dtype=torch.int32), some)
    mask_logits(torch.zeros(2, 5000), torch.zeros(1, dtype=torch.int64), torch.zeros(1, 157, dtype=torch.int32))


def other_formats() -> None:
    """Formats that the tiny models of offline_compile do not have, one row and several."""
    for kind in (QuantFormat.F16, QuantFormat.BF16, QuantFormat.NVFP4):
        weight = random_weight(64, 256, kind)
        for num_tokens in (1, 6):
            x, out = poisoned_activation(num_tokens, 256), poisoned_activation(num_tokens, 64)
            quant_gemv(x, [weight, random_weight(64, 256, QuantFormat.Q4_K)], 1e-6, torch.empty(num_tokens, 128))
            quant_gemv_residual(x, weight, torch.empty(num_tokens, 64), torch.empty(64), out, group=128, eps=1e-6)
            quant_swiglu(x, weight, weight, out, 1e-6)
        quant_embedding(torch.zeros(1, dtype=torch.int64), weight, torch.empty(1, 256))


def _gluon(kernel: Any, kind: QuantFormat, constants: dict[str, object], others: dict[str, str],
           target: GPUTarget, num_warps: int = 4) -> None:
    """Compile a Gluon kernel that reads planes of `kind`; others: signature of the rest."""
    weight = random_weight(64, 256, kind)
    planes = {"q": weight.quants, "h": weight.high, "s": weight.scales, "d": weight.supers, "e": weight.powers}
    signature = {
        name: "constexpr" if name in constants else others.get(name) or mangle_type(planes[name[-5]])
        for name in kernel.arg_names
    }
    places = kernel.arg_names
    aligned = {(places.index(name),): [["tt.divisibility", 16]] for name in places if signature[name][0] == "*"}
    source = GluonASTSource(kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=target, options={"num_warps": num_warps})
    assert compiled.metadata.shared < 100_000  # what every card has


def many_rows(target: GPUTarget) -> int:
    """The Gluon kernel of every format, of fewest and most rows, and of small matrices; returns how many that are."""
    jobs = [(kind, 32, 2048) for kind in FORMATS]
    jobs += [(QuantFormat.Q4_K, 16, 2048), (QuantFormat.Q4_K, 128, 2048), (QuantFormat.Q8_0, 64, 640)]
    is_bulk = int(target.arch) == 90
    for kind, num_tokens, num_cols in jobs:
        x = torch.empty(num_tokens, num_cols, dtype=torch.float16)
        others = {"x": mangle_type(bulk_copies(x) if is_bulk else x), "y_ptr": "*fp32", "num_rows": "i32",
                  "stride_y": "i32", "stride_split": "i32", "factor": "fp32"}
        constants = {"FMT": int(kind), "COLS": num_cols, "M": num_tokens, "PAIRS": pairs(num_tokens, is_bulk),
                     "FEW": num_cols < 2048, "HAS_WGMMA": is_bulk, "PDL": int(target.arch) >= 90}
        _gluon(_many_rows_kernel, kind, constants, others, target)
    return len(jobs)


def swiglu_rows(target: GPUTarget) -> int:
    """The Gluon kernel of every format, whole tiles and cut ones; returns how many that are."""
    jobs = [(kind, 32, 2) for kind in FORMATS] + [(QuantFormat.Q4_K, 64, 1)]
    is_bulk = int(target.arch) == 90
    for kind, num_tokens, num_parts in jobs:
        x = torch.empty(num_tokens, 2048, dtype=torch.float16)
        integers = dict.fromkeys(("whole", "num_parts", "stride_y"), "i32")
        others = integers | {"x": mangle_type(bulk_copies(x) if is_bulk else x), "y_ptr": "*fp16", "part_ptr": "*fp32",
                             "count_ptr": "*i32", "h_factor": "fp32"}
        constants = {"FMT": int(kind), "COLS": 2048, "M": num_tokens, "PAIRS": pairs(num_tokens, is_bulk),
                     "HAS_PARTS": num_parts > 1, "HAS_WGMMA": is_bulk, "PDL": int(target.arch) >= 90}
        _gluon(_swiglu_rows_kernel, kind, constants, others, target)
    return len(jobs)


def expert_rows(target: GPUTarget) -> int:
    """Both halves, runs of few and of many, experts of one group of columns; returns how many that are."""
    jobs = [(QuantFormat.Q4_K, 8, True, 2048), (QuantFormat.Q4_K, 128, True, 2048), (QuantFormat.Q6_K, 64, False, 2048),
            (QuantFormat.Q8_0, 16, False, 128)]
    others = {"x_ptr": "*fp16", "order_ptr": "*i32", "runs_ptr": "*i32", "num_runs_ptr": "*i32", "factor": "fp32"}
    for kind, length, is_pair, num_cols in jobs:
        constants = {"FMT": int(kind), "COLS": num_cols, "NUM_ROWS": 512, "TOP_K": 8, "M": length,
                     "STAGES": EXPERT_STAGES, "IS_PAIR": is_pair, "IS_SHORT": length == LONGEST,
                     "HAS_WGMMA": int(target.arch) == 90 and length > LONGEST,
                     "PDL": int(target.arch) >= 90}
        _gluon(_expert_rows_kernel, kind, constants, others | {"y_ptr": "*fp16" if is_pair else "*fp32"}, target)
    return len(jobs)


def streamed_products(target: GPUTarget) -> int:
    """Both kernels and formats; returns how many that are."""
    floats = ("xs_ptr", "xm_ptr", "xq_ptr", "ss_ptr", "residual_ptr", "w_ptr", "ys_ptr", "ym_ptr", "yp_ptr")
    others = dict.fromkeys(floats, "*fp32") | {"x_ptr": "*i32", "v_ptr": "*i8", "eps": "fp32"}
    is_new = int(target.arch) >= 90
    both = {"COLS": 3072, "WARPS": WARPS, "PREFETCH": is_new, "PDL": is_new}
    kinds = (QuantFormat.Q4_K, QuantFormat.Q6_K)
    for kind in kinds:
        _gluon(_streamed_swiglu_kernel, kind, both | {"FMT": int(kind), "FFN": 64, "STAGES": RING_STAGES},
               others, target, WARPS)
        _gluon(_streamed_residual_kernel, kind,
               both | {"FMT": int(kind), "N": 64, "GROUP": 128, "STAGES": RING_STAGES}, others, target, WARPS)
    return 2 * len(kinds)


def around_experts() -> None:
    """What sorts, routes and adds up."""
    ids, weights = torch.zeros(16, 8, dtype=torch.int32), torch.zeros(16, 9)
    route_tokens(torch.zeros(8, 16, 257), ids, weights)
    sort_tokens(ids, 256, Runs.empty(128, 256, 16, ids.device))
    x = poisoned_activation(16, 2048)
    products, residual, norm = torch.zeros(128, 2048), torch.zeros(16, 2048), torch.zeros(2048)
    router = random_weight(257, 2048, QuantFormat.F32)
    plain_rows(residual, router, x.square_sums, 1e-6)
    few, logits = poisoned_activation(8, 2048), torch.zeros(8, 272)[:, :257]
    router_choice(few, router, 1e-6, logits, ids[:8], weights[:8], torch.zeros(1, dtype=torch.int32))
    combine_experts(products, weights[:, :8], residual)
    rows = NormedRows.empty(16, 2048, residual.device)
    combine_experts_normed(products, weights, torch.zeros(8, 16, 2048), residual, norm, 1e-6, rows)
    add_parts_normed(torch.zeros(8, 16, 2048), residual, norm, 1e-6, rows)
    pack_rows(residual)
    pack_halves(x, 2048, 1e-6)
    parts = torch.zeros(2, 16, 512)
    add_parts(parts, torch.zeros(16, 512))
    add_parts_residual(torch.zeros(2, 16, 2048), residual, torch.zeros(2048), x)
    add_parts_swiglu(parts, parts, poisoned_activation(16, 512))
    add_parts_swiglu_packed(parts, parts, 0.5)


def wide_delta_steps(pdl: bool) -> None:
    """Heads of a real model, and the smallest."""
    num_seqs = 16
    for num_v_heads, head_dim, matrices in ((48, 128, [(2, 3), (2, 8)]), (16, 16, [(4, 1)])):
        layer = DeltaLayer.random(16, num_v_heads, head_dim, 1)
        parts = layer.random_parts(num_seqs, matrices)
        projected = ProjectedParts.of(parts, layer.widths[0], num_v_heads, head_dim)
        slots = torch.zeros(num_seqs, dtype=torch.int64)
        rows = torch.empty(num_seqs, 16 + num_v_heads, row_width(head_dim))
        out = torch.empty(num_seqs, layer.widths[1], dtype=torch.float16)
        wide_delta_step(projected, layer.weights, layer.ring, layer.state, layer.held, slots, slots, rows, out, EPS,
                        pdl)


def e4m3_operands() -> None:
    for kind in (QuantFormat.F16, QuantFormat.Q8_0, QuantFormat.Q4_K, QuantFormat.Q6_K):
        quantize_weights([random_weight(144, 1280, kind)])
    quantize_rows(torch.zeros(7, 1280).half())
    gate_up_rows(torch.zeros(7, 1280).bfloat16(), None, False)


def compile_all(name: str) -> int:
    recorder = Recorder((NVIDIA | AMD)[name])
    in_gluon = (many_rows, swiglu_rows, expert_rows, streamed_products) if name in NVIDIA else ()
    num_gluon = sum(make(recorder.target) for make in in_gluon)
    recorder.record(draws)
    recorder.record(around_experts)
    recorder.record(lambda: wide_delta_steps(name in NVIDIA and recorder.target.arch >= 90))
    if name in NVIDIA and recorder.target.arch >= 89:
        recorder.record(e4m3_operands)
    if name in ("sm_80", "sm_90", "gfx942"):  # formats differ no further between cards
        recorder.record(other_formats)
    return len(recorder.compiled) + num_gluon


if __name__ == "__main__":
    for target_name in sys.argv[1:]:
        print(target_name, compile_all(target_name), flush=True)

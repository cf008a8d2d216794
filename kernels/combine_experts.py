"""What ends a layer of experts: each token's products, weighted and added up slot by slot.

Bytes moved: every product once, the results once. Accumulation: f32, in the order of the slots, the shared expert last.
Reference:   kernels/reference/grouped_experts.py
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import emit_blocks
from kernels.quant_format import QuantActivation

BLOCK = 256  # columns a program finishes


@triton.jit
def _weighted(y_ptr, weights_ptr, offs, inside, N: tl.constexpr, TOP_K: tl.constexpr):
    total = tl.load(y_ptr + offs, mask=inside, other=0.0).to(tl.float32) * tl.load(weights_ptr)
    for slot in tl.static_range(1, TOP_K):
        y = tl.load(y_ptr + slot * N + offs, mask=inside, other=0.0)
        total += y.to(tl.float32) * tl.load(weights_ptr + slot)
    return total


@triton.jit
def _combine_kernel(
    y_ptr, weights_ptr, stride_weights, out_ptr, N: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    m = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offs < N
    total = _weighted(y_ptr + m.to(tl.int64) * TOP_K * N, weights_ptr + m * stride_weights, offs, inside, N, TOP_K)
    tl.store(out_ptr + m.to(tl.int64) * N + offs, total, mask=inside)


@triton.jit
def _residual_kernel(
    y_ptr, weights_ptr, shared_ptr, stride_split, residual_ptr, w_ptr, v_ptr, ys_ptr, ym_ptr, yp_ptr, ss_ptr,
    N: tl.constexpr, TOP_K: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):
    """SPLITS: parts that the shared expert's product comes in; 0: there is none."""
    m = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    WIDTH: tl.constexpr = TOP_K + 1 if SPLITS > 0 else TOP_K
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offs < N
    weights_ptr += m * WIDTH
    y = _weighted(y_ptr + m * TOP_K * N, weights_ptr, offs, inside, N, TOP_K)
    if SPLITS > 0:
        shared = tl.load(shared_ptr + m * N + offs, mask=inside, other=0.0)
        for split in tl.static_range(1, SPLITS):
            shared += tl.load(shared_ptr + split * stride_split + m * N + offs, mask=inside, other=0.0)
        y += shared * tl.load(weights_ptr + TOP_K)
    y += tl.load(residual_ptr + m * N + offs, mask=inside, other=0.0)
    tl.store(residual_ptr + m * N + offs, y, mask=inside)
    norm = tl.load(w_ptr + offs, mask=inside, other=0.0)
    emit_blocks(y, norm, tl.program_id(1) * (BLOCK // 16), v_ptr + m * 2 * N, ys_ptr + m * (N // 16),
                ym_ptr + m * (N // 16), yp_ptr + m * N, ss_ptr + m * (N // 16), N, BLOCK // 16)


def combine_experts(products: Tensor, weights: Tensor, out: Tensor, pdl: bool = False) -> None:
    """out[token] = sum over slots of weight * product.

    products:  [num_tokens * top_k, hidden] f32 or f16
    weights:   [num_tokens, top_k] f32, or a slice of wider rows
    out:       [num_tokens, hidden] f32, written
    """
    num_tokens, hidden = out.shape
    options = {"launch_pdl": True} if pdl else {}
    _combine_kernel[(num_tokens, triton.cdiv(hidden, BLOCK))](
        products, weights, weights.stride(0), out, N=hidden, TOP_K=products.shape[0] // num_tokens, BLOCK=BLOCK,
        PDL=pdl, **options,
    )


def combine_experts_residual(
    products: Tensor, weights: Tensor, shared: Tensor | None, residual: Tensor, norm_weight: Tensor,
    out: QuantActivation, pdl: bool = False,
) -> None:
    """residual += the weighted sum, and the next layer's input, as `moe_down` leaves them.

    products:  [num_tokens * top_k, hidden] f32
    weights:   [num_tokens, top_k] f32, one column more with `shared`
    shared:    [num_splits, num_tokens, hidden] f32, parts of the shared expert's product, or None
    residual, norm_weight, out: as `moe_down` takes them
    """
    num_tokens, hidden = residual.shape
    options = {"launch_pdl": True} if pdl else {}
    parts = products if shared is None else shared
    _residual_kernel[(num_tokens, triton.cdiv(hidden, BLOCK))](
        products, weights, parts, 0 if shared is None else parts.stride(0), residual, norm_weight, out.values,
        out.scales, out.sums, out.plain, out.square_sums, N=hidden, TOP_K=products.shape[0] // num_tokens,
        SPLITS=0 if shared is None else parts.shape[0], BLOCK=BLOCK, PDL=pdl, **options,
    )

"""Each token's products of its experts, weighted and added up slot by slot.

Bytes moved: every product once, the results once. Accumulation: f32, in the order of the slots.
Reference:   kernels/reference/normed_rows.py (weighted)
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

BLOCK = 256  # columns a program finishes


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
    y_ptr += m.to(tl.int64) * TOP_K * N
    weights_ptr += m * stride_weights
    total = tl.load(y_ptr + offs, mask=inside, other=0.0).to(tl.float32) * tl.load(weights_ptr)
    for slot in tl.static_range(1, TOP_K):
        y = tl.load(y_ptr + slot * N + offs, mask=inside, other=0.0)
        total += y.to(tl.float32) * tl.load(weights_ptr + slot)
    tl.store(out_ptr + m.to(tl.int64) * N + offs, total, mask=inside)


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

"""residual += rms_norm(y) * weight, and the next layer's input: how layers end that norm what they add.

Each program finishes 256 columns and adds up the squares of the whole row, in a fixed order.
Bytes moved: y once (more often from L2), 3 rows of activations.
Reference:   kernels/reference/post_norm.py
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import emit_blocks
from kernels.half_rows import half_arguments, half_place, store_half
from kernels.quant_format import QuantActivation

BLOCK = 256


@triton.jit
def _post_norm_kernel(
    y_ptr, post_ptr, eps, residual_ptr, w_ptr, v_ptr, ys_ptr, ym_ptr, yp_ptr, ss_ptr, half_ptr, factors_ptr,
    hints_ptr, N: tl.constexpr, FORM: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    squares = tl.zeros((1024,), tl.float32)
    for start in tl.static_range(0, N, 1024):
        column = start + tl.arange(0, 1024)
        some = tl.load(y_ptr + m * N + column, mask=column < N, other=0.0)
        squares += some * some
    factor = tl.rsqrt(tl.sum(squares, axis=0) / N + eps)
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offs < N
    y = tl.load(y_ptr + m * N + offs, mask=inside, other=0.0) * factor
    y = y * tl.load(post_ptr + offs, mask=inside, other=0.0)
    y += tl.load(residual_ptr + m * N + offs, mask=inside, other=0.0)
    tl.store(residual_ptr + m * N + offs, y, mask=inside)
    norm = tl.load(w_ptr + offs, mask=inside, other=0.0)
    emit_blocks(y, norm, tl.program_id(0) * (BLOCK // 16), v_ptr + m * 2 * N, ys_ptr + m * (N // 16),
                ym_ptr + m * (N // 16), yp_ptr + m * N, ss_ptr + m * (N // 16), N, BLOCK // 16)
    if FORM >= 0:
        hint = tl.load(hints_ptr + m)
        store_half(y * norm * hint, half_ptr + half_place(offs // 16, offs % 16, m, FORM == 1), inside)
        if tl.program_id(0) == 0:
            tl.store(factors_ptr + m, 1.0 / hint)


def post_norm(
    y: Tensor, post_weight: Tensor, eps: float, residual: Tensor, norm_weight: Tensor, out: QuantActivation,
    pdl: bool = False,
) -> None:
    """Add a normed row to the residual stream and emit the next norm's input.

    y:            [num_tokens, hidden] f32, what a half of a layer has computed; hidden a multiple of 32
    post_weight:  [hidden] f32, weight of the norm that y goes through; eps: its epsilon
    residual:     [num_tokens, hidden] f32, changed in place
    norm_weight:  [hidden] f32, weight of the norm that follows
    out:          [num_tokens, hidden], every plane written
    """
    num_tokens, hidden = y.shape
    *half, form = half_arguments(out)
    options = {"launch_pdl": True} if pdl else {}
    _post_norm_kernel[(triton.cdiv(hidden, BLOCK), num_tokens)](
        y, post_weight, eps, residual, norm_weight, out.values, out.scales, out.sums, out.plain, out.square_sums,
        *half, N=hidden, FORM=form, BLOCK=BLOCK, PDL=pdl, **options,
    )

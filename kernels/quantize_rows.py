"""A float32 residual row as the next layer's input: times the norm's weight, plain, as 16-bit integers and, for the
tensor cores, as f16 numbers.

Each program makes 256 columns; for f16 numbers it adds up the squares of the whole row.
Bytes moved: 4 bytes read (more often from L2) and 6.75 written per element, 2 more with f16. Accumulation: f32.
Reference:   kernels/reference/quant_gemv.py (quantize_rows)
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import emit_blocks
from kernels.half_rows import half_arguments, half_hint, half_place, store_half
from kernels.quant_format import QuantActivation

BLOCK = 256


@triton.jit
def _quantize_rows_kernel(
    x_ptr, w_ptr, v_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, half_ptr, factors_ptr, hints_ptr, eps, COLS: tl.constexpr,
    FORM: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):
    part = tl.program_id(0)
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    offs = part * BLOCK + tl.arange(0, BLOCK)
    inside = offs < COLS
    x_ptr += m * COLS
    x = tl.load(x_ptr + offs, mask=inside, other=0.0)
    norm = tl.load(w_ptr + offs, mask=inside, other=0.0)
    emit_blocks(x, norm, part * (BLOCK // 16), v_ptr + m * 2 * COLS, xs_ptr + m * (COLS // 16),
                xm_ptr + m * (COLS // 16), xp_ptr + m * COLS, ss_ptr + m * (COLS // 16), COLS, BLOCK // 16)
    if FORM >= 0:
        squares = tl.zeros((1024,), tl.float32)
        for start in tl.static_range(0, COLS, 1024):
            column = start + tl.arange(0, 1024)
            some = tl.load(x_ptr + column, mask=column < COLS, other=0.0)
            squares += some * some
        hint = half_hint(tl.rsqrt(tl.sum(squares, axis=0) / COLS + eps))
        store_half(x * norm * hint, half_ptr + half_place(offs // 16, offs % 16, m, FORM == 1), inside)
        if part == 0:
            tl.store(factors_ptr + m, 1.0 / hint)
            tl.store(hints_ptr + m, hint)


def quantize_rows(x: Tensor, norm_weight: Tensor, out: QuantActivation, eps: float = 0.0, pdl: bool = False) -> None:
    """Make the input of the first layer (later ones are made by the kernel that finishes the row).

    x:            [num_tokens, hidden] f32
    norm_weight:  [hidden] f32; eps: of the norm, of interest where there is out.half
    out:          [num_tokens, hidden], every plane written, the first hints too
    """
    num_tokens, hidden = x.shape
    *half, form = half_arguments(out)
    options = {"launch_pdl": True} if pdl else {}
    _quantize_rows_kernel[(triton.cdiv(hidden, BLOCK), num_tokens)](
        x, norm_weight, out.values, out.scales, out.sums, out.plain, out.square_sums, *half, eps, COLS=hidden,
        FORM=form, BLOCK=BLOCK, PDL=pdl, num_warps=4, **options,
    )

"""A float32 residual row as the next layer's input: times the norm's weight, plain and as 16-bit integers.

Bytes moved: 4 bytes read and 6.75 written per element. Accumulation: f32.
Reference:   kernels/reference/quant_gemv.py (quantize_rows)
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import emit_block
from kernels.quant_format import QuantActivation


@triton.jit
def _quantize_rows_kernel(
    x_ptr, w_ptr, v_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, COLS: tl.constexpr, PDL: tl.constexpr
):
    block = tl.program_id(0)
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    offs = block * 16 + tl.arange(0, 16)
    x = tl.load(x_ptr + m * COLS + offs)
    emit_block(x, block, tl.load(w_ptr + offs), v_ptr + m * 2 * COLS, xs_ptr + m * (COLS // 16),
               xm_ptr + m * (COLS // 16), xp_ptr + m * COLS, ss_ptr + m * (COLS // 16), COLS)


def quantize_rows(x: Tensor, norm_weight: Tensor, out: QuantActivation, pdl: bool = False) -> None:
    """Make the input of the first layer (later ones are made by the kernel that finishes the row).

    x:            [num_tokens, hidden] f32
    norm_weight:  [hidden] f32
    out:          [num_tokens, hidden], every plane written
    """
    options = {"launch_pdl": True} if pdl else {}
    _quantize_rows_kernel[(x.shape[1] // 16, x.shape[0])](
        x, norm_weight, out.values, out.scales, out.sums, out.plain, out.square_sums, COLS=x.shape[1], PDL=pdl,
        num_warps=1, **options,
    )

"""(I + A)^-1 of strictly lower triangles A of 64 x 64, by forward substitution, one program a triangle.

Row i of the inverse is e_i - sum_j<i A_ij (row j): 63 dependent steps on a tile in registers, exact to the last bits
where products of powers of A would cancel.
Bytes moved: each triangle read twice and written once. Accumulation: f32.
Reference:   kernels/reference/gated_delta_rule.py (its triangular solver)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 64


@triton.jit
def _unit_lower_inverse_kernel(a_ptr, x_ptr, SIZE: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * SIZE * SIZE
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, SIZE)[None, :]
    x = tl.where(rows == columns, 1.0, 0.0)
    for i in tl.range(1, SIZE):
        factors = tl.load(a_ptr + base + i * SIZE + tl.arange(0, SIZE))  # zero from column i on
        row = -tl.sum(factors[:, None] * x, axis=0)
        x = tl.where(rows == i, x + row[None, :], x)
    tl.store(x_ptr + base + rows * SIZE + columns, x)


def unit_lower_inverse(lower: Tensor) -> Tensor:
    """lower: [..., 64, 64] f32, zero on and above the diagonal, contiguous -> the inverses of I + lower, same shape."""
    out = torch.empty_like(lower)
    _unit_lower_inverse_kernel[(lower.numel() // SIZE**2,)](lower, out, SIZE=SIZE, num_warps=4)
    return out

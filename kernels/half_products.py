"""x W^T of f16 numbers, every row's sums in the same order however many rows there are.

cuBLAS chooses a kernel, and with it an order, by the number of rows; here tiles differ in size alone, and each sum goes
along the columns 64 at a time. Not for speed.
Bytes moved: W once per 64 or 128 rows of x (mostly from L2), x once per 64 to 256 rows of W. Accumulation: f32.
Reference:   x.float() @ weight.float().T
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.launch import has_large_shared_memory

STEP = 64     # columns of x and W at a time
FEW_PROGRAMS = 132  # leave multiprocessors idle
BAND = 8      # tiles of rows whose programs follow each other, so that they find W in L2


@triton.jit
def _half_products_kernel(
    x_desc, w_desc, y_ptr, num_tokens, num_rows, num_cols, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    STEP: tl.constexpr, BAND: tl.constexpr,
):
    token_tiles = tl.cdiv(num_tokens, TOKENS)
    row_tiles = tl.cdiv(num_rows, ROWS)
    band = tl.program_id(0) // (BAND * row_tiles)
    place = tl.program_id(0) % (BAND * row_tiles)
    height = tl.minimum(token_tiles - band * BAND, BAND)
    first_token = (band * BAND + place % height) * TOKENS
    first_row = place // height * ROWS
    acc = tl.zeros((TOKENS, ROWS), tl.float32)
    for column in tl.range(0, num_cols, STEP):
        x = x_desc.load([first_token, column])
        w = w_desc.load([first_row, column])
        acc = tl.dot(x, w.T, acc)
    token = (first_token + tl.arange(0, TOKENS)).to(tl.int64)[:, None]
    row = (first_row + tl.arange(0, ROWS))[None, :]
    tl.store(y_ptr + token * num_rows + row, acc, mask=(token < num_tokens) & (row < num_rows))


def _tile(num_tokens: int, num_rows: int) -> tuple[int, int, int, int]:
    """(tokens, rows, warps, stages) that were fastest on an H200 (docs/performance.md)."""
    if num_tokens <= 64:
        return 64, 64, 4, 6
    if num_tokens > 512:
        return 128, 256, 8, 3
    if triton.cdiv(num_tokens, 128) * triton.cdiv(num_rows, 128) < FEW_PROGRAMS:
        return 64, 128, 4, 4
    return 128, 128, 8, 3


def half_products(x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """[num_tokens, num_rows] f32, contiguous: `out`, where it is given.

    x:       [num_tokens, num_cols] f16, contiguous; num_cols a multiple of 8
    weight:  [num_rows, num_cols] f16, contiguous
    """
    num_tokens, num_cols = x.shape
    num_rows = weight.shape[0]
    if out is None:
        out = torch.empty(num_tokens, num_rows, dtype=torch.float32, device=x.device)
    tokens, rows, warps, stages = _tile(num_tokens, num_rows) if has_large_shared_memory(x) else (64, 64, 4, 4)
    _half_products_kernel[(triton.cdiv(num_tokens, tokens) * triton.cdiv(num_rows, rows),)](
        TensorDescriptor.from_tensor(x, [tokens, STEP]), TensorDescriptor.from_tensor(weight, [rows, STEP]), out,
        num_tokens, num_rows, num_cols, TOKENS=tokens, ROWS=rows, STEP=STEP, BAND=BAND, num_warps=warps,
        num_stages=stages,
    )
    return out

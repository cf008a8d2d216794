"""What lies between the products of a prompt's layer, row by row: norms, gates and activations, ready as f16.

Bytes moved: every input once, every output once. Accumulation: f32.
Reference:   kernels/reference/prompt_rows.py
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _to_half(x):
    """Numbers beyond f16 become its largest."""
    return tl.minimum(tl.maximum(x, -65504.0), 65504.0).to(tl.float16)


@triton.jit
def _add_norm_kernel(
    x_ptr, y_ptr, stride_y, factor, z_ptr, post_ptr, post_eps, norm_ptr, eps, half_ptr, plain_ptr, COLS: tl.constexpr,
    BLOCK: tl.constexpr, HAS_Y: tl.constexpr, HAS_Z: tl.constexpr, POST: tl.constexpr, PLAIN: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    used = column < COLS
    x = tl.load(x_ptr + row * COLS + column, mask=used, other=0.0)
    if HAS_Y:
        y = tl.load(y_ptr + row * stride_y + column, mask=used, other=0.0) * factor
        if HAS_Z:
            y += tl.load(z_ptr + row * COLS + column, mask=used, other=0.0)
        if POST:
            y *= tl.rsqrt(tl.sum(y * y, axis=0) / COLS + post_eps) * tl.load(post_ptr + column, mask=used, other=0.0)
        x += y
        tl.store(x_ptr + row * COLS + column, x, mask=used)
    hidden = x * tl.rsqrt(tl.sum(x * x, axis=0) / COLS + eps) * tl.load(norm_ptr + column, mask=used, other=0.0)
    tl.store(half_ptr + row * COLS + column, _to_half(hidden), mask=used)
    if PLAIN:
        tl.store(plain_ptr + row * COLS + column, hidden, mask=used)


def add_norm(
    x: Tensor, added: tuple[Tensor, ...], post: tuple[Tensor, float] | None, norm: Tensor, eps: float, half: Tensor,
    plain: Tensor | None, factor: float = 1.0,
) -> None:
    """x += the sum of `added` (itself normed first where `post` says so); half, plain = norm of x.

    x:      [num_tokens, hidden] f32, contiguous, changed in place
    added:  up to two of [num_tokens, hidden] f32, the first times `factor`; the second contiguous
    post:   (weight [hidden] f32, eps), or None
    norm:   [hidden] f32
    half:   [num_tokens, hidden] f16, written; plain: the same in f32, or None
    """
    y, z = (added[0] if added else x), (added[1] if len(added) > 1 else x)
    post_weight, post_eps = post or (norm, 0.0)
    cols = x.shape[1]
    _add_norm_kernel[(x.shape[0],)](
        x, y, y.stride(0), factor, z, post_weight, post_eps, norm, eps, half, half if plain is None else plain,
        COLS=cols, BLOCK=triton.next_power_of_2(cols), HAS_Y=bool(added), HAS_Z=len(added) > 1, POST=post is not None,
        PLAIN=plain is not None, num_warps=8 if cols > 4096 else 4,
    )


@triton.jit(do_not_specialize=["num_rows"])
def _gated_norm_kernel(
    x_ptr, z_ptr, stride_z, norm_ptr, eps, out_ptr, num_rows, HEADS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    dims = tl.arange(0, D)[None, :]
    used = row < num_rows
    x = tl.load(x_ptr + row * D + dims, mask=used, other=0.0).to(tl.float32)
    z = tl.load(z_ptr + row // HEADS * stride_z + row % HEADS * D + dims, mask=used, other=0.0)
    factor = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
    y = x * factor * tl.load(norm_ptr + dims) * z / (1.0 + tl.exp(-z))
    tl.store(out_ptr + row * D + dims, _to_half(y), mask=used)


def gated_norm(x: Tensor, gate: Tensor, norm: Tensor, eps: float, out: Tensor) -> None:
    """rms_norm(x) * norm * silu(gate), head by head.

    x:     [num_tokens, heads * d] f16 or f32, contiguous
    gate:  [num_tokens, heads * d] f32, rows at any stride
    norm:  [d] f32
    out:   [num_tokens, heads * d] f16, written
    """
    d = norm.shape[0]
    num_rows = x.numel() // d
    rows = max(1, 4096 // d)
    _gated_norm_kernel[(triton.cdiv(num_rows, rows),)](
        x, gate, gate.stride(0), norm, eps, out, num_rows, HEADS=x.shape[1] // d, D=d, ROWS=rows, num_warps=4,
    )


@triton.jit
def gated_halves(
    x_ptr, stride_x, row_gate_ptr, stride_row, factor, row, column, COLS, GELU: tl.constexpr, ROW_GATE: tl.constexpr
):
    """factor * act(gate) * up in f32, some columns of a row that holds gate and up side by side."""
    used = column < COLS
    gate = tl.load(x_ptr + row * stride_x + column, mask=used, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * stride_x + COLS + column, mask=used, other=0.0).to(tl.float32)
    if GELU:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        gate = gate / (1.0 + tl.exp(-2.0 * inner))
    else:
        gate = gate / (1.0 + tl.exp(-gate))
    y = gate * up * factor
    if ROW_GATE:
        y = y / (1.0 + tl.exp(-tl.load(row_gate_ptr + row * stride_row)))
    return y


@triton.jit(do_not_specialize=["stride_row"])
def _gate_up_kernel(
    x_ptr, stride_x, row_gate_ptr, stride_row, out_ptr, factor, COLS, GELU: tl.constexpr, ROW_GATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    y = gated_halves(x_ptr, stride_x, row_gate_ptr, stride_row, factor, row, column, COLS, GELU, ROW_GATE)
    tl.store(out_ptr + row * COLS + column, _to_half(y), mask=column < COLS)


def gate_up(x: Tensor, row_gate: Tensor | None, is_gelu: bool, out: Tensor, factor: float = 1.0) -> None:
    """factor * silu(gate) * up, or GELU in its tanh form; times sigmoid(row_gate).

    x:         [num_tokens, 2 * cols] f32: gate | up, rows at any stride
    row_gate:  [num_tokens] f32 at any stride, or None
    out:       [num_tokens, cols] f16, written
    """
    num_tokens, cols = out.shape
    block = min(1024, triton.next_power_of_2(cols))
    _gate_up_kernel[(num_tokens, triton.cdiv(cols, block))](
        x, x.stride(0), x if row_gate is None else row_gate, 0 if row_gate is None else row_gate.stride(0), out,
        factor, cols, GELU=is_gelu, ROW_GATE=row_gate is not None, BLOCK=block, num_warps=4,
    )

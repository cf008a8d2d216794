"""h = silu(gate x) * (up x), quantised, for 1 to 8 rows of a dense feed-forward layer, in one launch.

Each program finishes 16 columns of h, one activation block. Bytes moved: both matrices' planes once.
Accumulation as in `quant_gemv`.
Reference:   kernels/reference/quant_moe.py (swiglu)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels import streamed_products
from kernels.activation import quantize_block, rms_factor
from kernels.few_rows import few_rows_swiglu, fits
from kernels.launch import THREE_OF_8_WARPS, RowTile, block_tile, has_dp4a, launch_options
from kernels.quant_dot import dot_rows, first_tiles
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight


@triton.jit
def _quant_swiglu_kernel(
    gq_ptr, gh_ptr, gs_ptr, gd_ptr, uq_ptr, uh_ptr, us_ptr, ud_ptr, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr,
    v_ptr, ys_ptr, ym_ptr, eps, FMT: tl.constexpr, COLS: tl.constexpr, FFN: tl.constexpr, M: tl.constexpr,
    W: tl.constexpr, RT: tl.constexpr, T: tl.constexpr, DEPTH: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    block = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    row = block * 16 + tl.arange(0, W)[:, None] * RT + tl.arange(0, RT)[None, :]
    gate_tiles = first_tiles(FMT, gq_ptr, gh_ptr, gs_ptr, gd_ptr, row, COLS, T, DEPTH)
    if PDL:
        gdc_wait()
    factors = ()
    for m in tl.static_range(M):
        factors = factors + (rms_factor(ss_ptr + m * (COLS // 16), tl.arange(0, W) * 0, eps, COLS)[:, None],)
    up_tiles = first_tiles(FMT, uq_ptr, uh_ptr, us_ptr, ud_ptr, row, COLS, T, DEPTH)
    gates = dot_rows(
        FMT, gate_tiles, gq_ptr, gh_ptr, gs_ptr, gd_ptr, row, x_ptr, xs_ptr, xm_ptr, xp_ptr, COLS, M, T, DEPTH, NATIVE
    )
    ups = dot_rows(
        FMT, up_tiles, uq_ptr, uh_ptr, us_ptr, ud_ptr, row, x_ptr, xs_ptr, xm_ptr, xp_ptr, COLS, M, T, DEPTH, NATIVE
    )
    for m in tl.static_range(M):
        gate = gates[m] * factors[m]
        h = gate / (1.0 + tl.exp(-gate)) * (ups[m] * factors[m])
        quantize_block(tl.reshape(h, (16,)), block, v_ptr + m * 2 * FFN, ys_ptr + m * (FFN // 16),
                       ym_ptr + m * (FFN // 16), FFN)


def swiglu_tile(quant_format: QuantFormat, num_cols: int, num_tokens: int) -> RowTile:
    """The tile that was fastest on an H200 (docs/performance.md)."""
    depth = max(1, (2 if num_tokens == 1 else 4) // num_tokens)
    return block_tile(quant_format, num_cols, num_warps=4, chunks=32, depth=depth)


def quant_swiglu(
    x: QuantActivation,
    gate: QuantWeight,
    up: QuantWeight,
    out: QuantActivation,
    eps: float,
    tile: RowTile | None = None,
    pdl: bool = False,
    half_factor: float = 1.0,
) -> None:
    """The first half of a gated feed-forward layer.

    x:         num_tokens 1 to 8, its norm factor applied here
    gate, up:  [ffn, hidden] of one format
    out:       [num_tokens, ffn] values, scales and sums written; with out.half, where `few_rows.order` is not None,
               that alone
    half_factor: power of two that keeps the result within f16
    """
    if gate.format != up.format:
        raise ValueError(f"gate is {gate.format.name} and up is {up.format.name}: one format is needed")
    if tile is None and fits(x, [gate, up]):
        few_rows_swiglu(x, gate, up, out, eps, pdl, half_factor=half_factor)
        return
    if tile is None and streamed_products.fits(x, gate):
        streamed_products.streamed_swiglu(x, gate, up, out, eps, pdl)
        return
    tile = tile or swiglu_tile(gate.format, gate.num_cols, x.num_tokens)
    planes = [p for w in (gate, up) for p in (w.quants, w.high, w.scales, w.supers)]
    _quant_swiglu_kernel[(gate.num_rows // 16,)](
        *planes, x.values.view(torch.int32), x.scales, x.sums, x.plain, x.square_sums, out.values, out.scales, out.sums,
        eps, FMT=int(gate.format), COLS=gate.num_cols, FFN=gate.num_rows, M=x.num_tokens, W=tile.row_lanes,
        RT=tile.rows_per_thread, T=tile.chunks, DEPTH=tile.depth, NATIVE=has_dp4a(), PDL=pdl,
        **launch_options(tile.num_warps, pdl, THREE_OF_8_WARPS),
    )

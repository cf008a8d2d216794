"""h = silu(gate x) * up x for 16 to 128 rows x of a dense layer, in one launch: both matrices' rows meet x as in
`many_rows`, and h leaves as the f16 rows that the next product wants. Written in Gluon.

A program makes 32 columns of h: a lane's two rows (`fragments`) are one of gate and the same of up, so that a thread
has both factors of a number of h, and the 32 columns lie side by side in the order of `pack_halves`. Programs beyond
what the card has room for would take a round of their own: the last tiles are cut along the columns, and whichever
program is a tile's last adds up the parts.

Bytes moved: every plane once; x once per program (from L2); parts of the last tiles; 2 bytes written a number of h.
Accumulation: f32, parts in order: the same bits whichever program comes last.
Reference:   kernels/reference/quant_moe.py
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.fragments import from_row, planes_apart, product_factors, tile_layout
from kernels.many_rows import (
    GROUP,
    MIN_GROUPS,
    MOST_PARTS,
    PART_COST,
    ROWS,
    bulk_copies,
    fits,
    has_wgmma,
    pairs,
    product_layout,
    programs_at_once,
    registers,
    tile_products,
)
from kernels.quant_format import QuantFormat, QuantWeight

WIDTH = ROWS // 2  # columns of h a program makes


@gluon.jit
def _rows(LAYOUT: gl.constexpr):
    """[64] int32 of a tile, counted from its first; bit 3 says which matrix a row is of."""
    row = gl.arange(0, 64, LAYOUT)
    return (row // 2 % 4 * 32 + row // 32 * 16) + (row // 16 % 2 + row % 2 * 2) + (row & 8)


@gluon.jit
def _part_places(M: gl.constexpr, ACC: gl.constexpr):
    """Of a part's [64, M] numbers: those that a warp has at once lie side by side."""
    row = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(1, ACC)), 1)
    token = gl.expand_dims(gl.arange(0, M, gl.SliceLayout(0, ACC)), 0)
    return (row // 16 * 64 + row // 8 % 2 * 256 + row % 8 * 8) + (token // 8 * 512 + token % 8)


@gluon.jit
def _sum_of_parts(part_ptr, num_parts, M: gl.constexpr, ACC: gl.constexpr):
    """Of two parts or more, each asked for while the one before is added; other programs wrote them: not from L1."""
    place = part_ptr + _part_places(M, ACC)
    total = gl.load(place, cache_modifier=".cg")
    ahead = gl.load(place + 64 * M, cache_modifier=".cg")
    for _ in range(2, num_parts):
        place += 64 * M
        following = gl.load(place + 64 * M, cache_modifier=".cg")
        total += ahead
        ahead = following
    return total + ahead


@gluon.jit
def _store_swiglu(y, y_ptr, stride_y, position, factor, M: gl.constexpr):
    """y: [64, M], eight rows of gate and the same of up in turn."""
    gate, up = gl.split(gl.permute(gl.reshape(y, (4, 2, 8, M)), (0, 2, 3, 1)))
    L: gl.constexpr = gate.type.layout
    warp = gl.expand_dims(gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(1, gl.SliceLayout(2, L))), 1), 2)
    g = gl.expand_dims(gl.expand_dims(gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(2, L))), 0), 2)
    token = gl.expand_dims(gl.expand_dims(gl.arange(0, M, gl.SliceLayout(0, gl.SliceLayout(1, L))), 0), 1)
    h = gate / (1.0 + gl.exp(-gate)) * up * factor
    gl.store(y_ptr + token * stride_y + (position + warp * 8 + g), h.to(gl.float16))


@gluon.jit
def _swiglu_rows_kernel(
    q_ptr, h_ptr, s_ptr, d_ptr, e_ptr, uq_ptr, uh_ptr, us_ptr, ud_ptr, ue_ptr, whole, num_parts, x, y_ptr, stride_y,
    part_ptr, count_ptr, h_factor, FMT: gl.constexpr, COLS: gl.constexpr, M: gl.constexpr, PAIRS: gl.constexpr,
    HAS_PARTS: gl.constexpr, HAS_WGMMA: gl.constexpr, PDL: gl.constexpr,
):
    """whole: tiles that one program makes each. x, PAIRS: of `tile_products`."""
    ACC: gl.constexpr = product_layout(M, HAS_WGMMA)
    STEPS: gl.constexpr = (COLS // 128 + 1) // 2
    tile = gl.program_id(0)
    first = 0
    last = STEPS
    if HAS_PARTS:
        rest = tile - whole
        is_whole = rest < 0
        part = rest % num_parts
        tile = gl.where(is_whole, tile, whole + rest // num_parts)
        first = gl.where(is_whole, 0, STEPS * part // num_parts)
        last = gl.where(is_whole, STEPS, STEPS * (part + 1) // num_parts)
    # Row 16 * warp + g of a tile makes position 32 * tile + 8 * warp + g of `pack_halves`.
    first_row = (tile // 4 * 128 + tile % 4 * 4).to(gl.int64)
    row = _rows(gl.SliceLayout(1, gl.SliceLayout(2, tile_layout())))
    planes = from_row(FMT, q_ptr, h_ptr, s_ptr, d_ptr, e_ptr, first_row, COLS)
    apart = planes_apart((q_ptr, h_ptr, s_ptr, d_ptr, e_ptr), (uq_ptr, uh_ptr, us_ptr, ud_ptr, ue_ptr))
    acc = tile_products(FMT, planes, row, apart, x, first, last, COLS, M, PAIRS, HAS_WGMMA, PDL)
    factors = gl.expand_dims(product_factors(planes, _rows(gl.SliceLayout(1, ACC)), apart), 1)
    if HAS_PARTS:
        is_last = is_whole
        if not is_whole:
            part_ptr += (tile - whole).to(gl.int64) * (num_parts * (64 * M))
            gl.store(part_ptr + part * (64 * M) + _part_places(M, ACC), acc)
            gl.thread_barrier()  # every thread's numbers before one thread's count
            if gl.atomic_add(count_ptr + (tile - whole), 1, sem="acq_rel") == num_parts - 1:
                acc = _sum_of_parts(part_ptr, num_parts, M, ACC)
                gl.store(count_ptr + (tile - whole), 0)
                is_last = rest >= 0
        if is_last:
            _store_swiglu(acc * factors, y_ptr, stride_y, tile * 32, h_factor, M)
    else:
        _store_swiglu(acc * factors, y_ptr, stride_y, tile * 32, h_factor, M)


def takes(gate: QuantWeight, up: QuantWeight, num_tokens: int) -> bool:
    """Whether the kernel has the product: one format, widths whole groups."""
    return gate.format == up.format and fits(gate, num_tokens) and gate.num_rows % GROUP == 0


@lru_cache
def cut(kind: QuantFormat, ffn: int, num_cols: int, num_tokens: int) -> tuple[int, int]:
    """(tiles that one program makes each, parts that each other one is cut into): the least time.

    64 rows of x, Q4_K: of 544 tiles 528 whole, the others in 8 parts; 128 rows: 396 and 2 parts
    """
    tiles, programs = ffn // WIDTH, programs_at_once(kind, num_tokens)
    rest = tiles % programs
    most = max(1, min(num_cols // (GROUP * MIN_GROUPS), MOST_PARTS))
    sums = PART_COST * num_tokens * rest * ROWS / (programs * num_cols)
    parts = min((-(-rest * parts // programs) / parts + parts * sums, parts) for parts in range(1, most + 1))[1]
    return (tiles, 1) if parts == 1 else (tiles - rest, parts)


def tile_counts(ffn: int, device: torch.device) -> Tensor:
    """What programs of a tile count in, zeros before and after; launches that may run at a time need one each."""
    return torch.zeros(ffn // WIDTH, dtype=torch.int32, device=device)


def swiglu_rows(
    x: Tensor, gate: QuantWeight, up: QuantWeight, factor: float, counts: Tensor, pdl: bool = False
) -> Tensor:
    """factor * silu(gate x) * (up x), [num_tokens, ffn] f16 in the order of `pack_halves`.

    x:         [num_tokens, num_cols] f16 in that order; num_tokens 16, 32, 64 or 128
    gate, up:  [ffn, num_cols], as `takes` wants them, planes at multiples of 16 bytes
    factor:    power of two that keeps the products within f16
    counts:    of `tile_counts`
    """
    num_tokens, ffn, is_bulk = x.shape[0], gate.num_rows, has_wgmma(x)
    whole, num_parts = cut(gate.format, ffn, gate.num_cols, num_tokens)
    num_rest = ffn // WIDTH - whole
    out = torch.empty(num_tokens, ffn, dtype=torch.float16, device=x.device)
    parts = torch.empty(max(1, num_rest * num_parts), ROWS, num_tokens, device=x.device)
    planes = [plane for w in (gate, up) for plane in (w.quants, w.high, w.scales, w.supers, w.powers)]
    _swiglu_rows_kernel[(whole + num_rest * num_parts,)](
        *planes, whole, num_parts, bulk_copies(x) if is_bulk else x, out, ffn, parts, counts, factor,
        FMT=int(gate.format), COLS=gate.num_cols, M=num_tokens, PAIRS=pairs(num_tokens, is_bulk),
        HAS_PARTS=num_rest > 0, HAS_WGMMA=is_bulk, PDL=pdl, num_warps=4,
        maxnreg=registers(gate.format, num_tokens) if is_bulk else None, **({"launch_pdl": True} if pdl else {}),
    )
    return out

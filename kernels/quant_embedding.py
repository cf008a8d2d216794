"""Rows of a quantised embedding matrix as float32: x[m] = W[ids[m]].

Bytes moved: the rows' planes, 4 * num_cols bytes written per token.
Reference:   kernels/reference/quant_weight.py (indexing its result)
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.launch import has_dp4a, row_tile
from kernels.quant_format import QuantWeight
from kernels.quant_unpack import chunk_columns, has_minimum, is_float, load_tile, unpack_scales, unpack_words


@triton.jit
def _quant_embedding_kernel(
    q_ptr, h_ptr, s_ptr, d_ptr, ids_ptr, x_ptr, FMT: tl.constexpr, COLS: tl.constexpr, T: tl.constexpr,
    NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    chunk = tl.program_id(0) * T + tl.arange(0, T)
    rows = tl.load(ids_ptr + m).to(tl.int64) + tl.zeros((1, 1, 1), tl.int64)
    tile = load_tile(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, chunk, COLS)
    if is_float(FMT):
        ITEMS: tl.constexpr = chunk_columns(FMT)
        target = x_ptr + m * COLS + chunk[:, None, None, None] * ITEMS + tl.arange(0, ITEMS)[None, None, None, :]
        tl.store(target, tile[0].to(tl.float32))
    else:
        low, high = unpack_words(FMT, tile, NATIVE)
        scale, scale_high, minimum = unpack_scales(FMT, tile)
        word = tl.arange(0, 4)[None, None, None, :]
        CHUNK: tl.constexpr = chunk_columns(FMT)
        target = x_ptr + m * COLS + chunk[:, None, None, None] * CHUNK + word * 4
        OFFSET: tl.constexpr = 32.0 if FMT == 14 else 0.0
        HAS_MINIMUM: tl.constexpr = has_minimum(FMT)
        for i in tl.static_range(4):
            first = scale[:, :, :, None] * (((low << (24 - 8 * i)) >> 24).to(tl.float32) - OFFSET)
            second = scale_high[:, :, :, None] * (((high << (24 - 8 * i)) >> 24).to(tl.float32) - OFFSET)
            if HAS_MINIMUM:
                first -= minimum[:, :, :, None]
                second -= minimum[:, :, :, None]
            tl.store(target + i, first)
            if FMT != 8:
                tl.store(target + 16 + i, second)


def quant_embedding(ids: Tensor, weight: QuantWeight, out: Tensor, pdl: bool = False) -> None:
    """Look up one row per token.

    ids:     [num_tokens] int64
    weight:  [vocab_size, num_cols]
    out:     [num_tokens, num_cols] f32, written
    """
    tile = row_tile(weight.format, weight.num_cols, 1, 1)
    options = {"launch_pdl": True} if pdl else {}
    num_chunks = weight.num_cols // weight.format.chunk
    _quant_embedding_kernel[(num_chunks // tile.chunks, ids.shape[0])](
        weight.quants, weight.high, weight.scales, weight.supers, ids, out, FMT=int(weight.format),
        COLS=weight.num_cols, T=tile.chunks, NATIVE=has_dp4a(), PDL=pdl, num_warps=1, **options,
    )

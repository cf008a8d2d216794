"""h = silu(gate x) * (up x) for a token's chosen experts and the shared one, quantised; the choice is made here too.

Every program repeats the choice of its expert from the router's logits (kernels/slot_choice.py): slot s takes s + 1
rounds inside each warp, which costs less than a launch.
Slots 0 .. top_k - 1 are the routed experts in order of falling weight, slot top_k the shared one.
Bytes moved: gate and up planes of the chosen experts once per token. Accumulation as in `quant_gemv`.
Reference:   kernels/reference/quant_moe.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import quantize_block, rms_factor
from kernels.launch import THREE_OF_8_WARPS, RowTile, block_tile, has_dp4a, launch_options
from kernels.quant_dot import dot_rows, first_tiles
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight
from kernels.slot_choice import expert_keys, expert_of, lane_span, next_best


@triton.jit
def _choose(logits_ptr, slot, zero, E: tl.constexpr, SPAN: tl.constexpr):
    """Number of the `slot`-th largest of E logits, [W] int32."""
    keys = expert_keys(logits_ptr, zero, E, SPAN)
    best = zero + 0x7FFFFFFF
    for _ in tl.range(0, slot + 1):
        best = next_best(keys, best)
    return expert_of(best, SPAN)


@triton.jit
def _gate_up(
    FMT: tl.constexpr, gate_tiles, gq_ptr, gh_ptr, gs_ptr, gd_ptr, up_tiles, uq_ptr, uh_ptr, us_ptr, ud_ptr, row, block,
    x_ptr, xs_ptr, xm_ptr, ss_ptr, eps, v_ptr, ys_ptr, ym_ptr, COLS: tl.constexpr, FFN: tl.constexpr, T: tl.constexpr,
    DEPTH: tl.constexpr, NATIVE: tl.constexpr,
):
    factor = rms_factor(ss_ptr, tl.arange(0, row.shape[0]) * 0, eps, COLS)[:, None]
    gate = dot_rows(FMT, gate_tiles, gq_ptr, gh_ptr, gs_ptr, gd_ptr, row, x_ptr, xs_ptr, xm_ptr, None, COLS, 1, T,
                    DEPTH, NATIVE)[0] * factor
    up = dot_rows(FMT, up_tiles, uq_ptr, uh_ptr, us_ptr, ud_ptr, row, x_ptr, xs_ptr, xm_ptr, None, COLS, 1, T, DEPTH,
                  NATIVE)[0] * factor
    h = gate / (1.0 + tl.exp(-gate)) * up
    quantize_block(tl.reshape(h, (16,)), block, v_ptr, ys_ptr, ym_ptr, FFN)


@triton.jit
def _wait(PDL: tl.constexpr):
    """For the kernel before; the next one may begin then, not earlier: it reads logits before it waits for this one."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _moe_gate_up_kernel(
    gq_ptr, gh_ptr, gs_ptr, gd_ptr, uq_ptr, uh_ptr, us_ptr, ud_ptr,
    zq_ptr, zh_ptr, zs_ptr, zd_ptr, yq_ptr, yh_ptr, ys_ptr, yd_ptr,
    x_ptr, xs_ptr, xm_ptr, ss_ptr, logits_ptr, stride_logits, ids_ptr, v_ptr, hs_ptr, hm_ptr, eps,
    FMT: tl.constexpr, SHARED_FMT: tl.constexpr, COLS: tl.constexpr, FFN: tl.constexpr, E: tl.constexpr,
    SPAN: tl.constexpr, TOP_K: tl.constexpr, W: tl.constexpr, RT: tl.constexpr, T: tl.constexpr, DEPTH: tl.constexpr,
    SHARED_W: tl.constexpr, SHARED_RT: tl.constexpr, SHARED_T: tl.constexpr, SHARED_DEPTH: tl.constexpr,
    CHOSEN: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    block = tl.program_id(0)
    slot = tl.num_programs(1) - 1 - tl.program_id(1)  # the shared expert first: its weights need no choice
    m = tl.program_id(2)
    x_ptr += m * (COLS // 2)
    xs_ptr += m * (COLS // 16)
    xm_ptr += m * (COLS // 16)
    ss_ptr += m * (COLS // 16)
    HAS_SHARED: tl.constexpr = SHARED_FMT >= 0
    out = m * (TOP_K + 1 if HAS_SHARED else TOP_K) + slot
    v_ptr += out * 2 * FFN
    hs_ptr += out * (FFN // 16)
    hm_ptr += out * (FFN // 16)
    if slot < TOP_K:
        _wait(PDL)
        zero = tl.arange(0, W) * 0
        if CHOSEN:
            expert = tl.load(ids_ptr + m * TOP_K + slot + zero)
        else:
            expert = _choose(logits_ptr + m * stride_logits, slot, zero, E, SPAN)
        local = block * 16 + tl.arange(0, W)[:, None] * RT + tl.arange(0, RT)[None, :]
        row = expert[:, None] * FFN + local
        gate_tiles = first_tiles(FMT, gq_ptr, gh_ptr, gs_ptr, gd_ptr, row, COLS, T, DEPTH)
        up_tiles = first_tiles(FMT, uq_ptr, uh_ptr, us_ptr, ud_ptr, row, COLS, T, DEPTH)
        if not CHOSEN:
            if block == 0:
                tl.store(ids_ptr + m * TOP_K + slot + zero, expert)
        _gate_up(FMT, gate_tiles, gq_ptr, gh_ptr, gs_ptr, gd_ptr, up_tiles, uq_ptr, uh_ptr, us_ptr, ud_ptr, row, block,
                 x_ptr, xs_ptr, xm_ptr, ss_ptr, eps, v_ptr, hs_ptr, hm_ptr, COLS, FFN, T, DEPTH, NATIVE)
    if HAS_SHARED:
        if slot == TOP_K:
            row = block * 16 + tl.arange(0, SHARED_W)[:, None] * SHARED_RT + tl.arange(0, SHARED_RT)[None, :]
            gate_tiles = first_tiles(SHARED_FMT, zq_ptr, zh_ptr, zs_ptr, zd_ptr, row, COLS, SHARED_T, SHARED_DEPTH)
            up_tiles = first_tiles(SHARED_FMT, yq_ptr, yh_ptr, ys_ptr, yd_ptr, row, COLS, SHARED_T, SHARED_DEPTH)
            _wait(PDL)
            _gate_up(SHARED_FMT, gate_tiles, zq_ptr, zh_ptr, zs_ptr, zd_ptr, up_tiles, yq_ptr, yh_ptr, ys_ptr, yd_ptr,
                     row, block, x_ptr, xs_ptr, xm_ptr, ss_ptr, eps, v_ptr, hs_ptr, hm_ptr, COLS, FFN, SHARED_T,
                     SHARED_DEPTH, NATIVE)


def expert_tile(quant_format: QuantFormat, ffn: int, num_cols: int, num_tokens: int) -> RowTile:
    """The tile that was fastest on an H200 (docs/performance.md)."""
    if num_tokens > 1:
        return block_tile(quant_format, num_cols, num_warps=4, chunks=32, depth=2)
    return block_tile(quant_format, num_cols, num_warps=8, chunks=32, depth=2 if ffn <= 512 else 1)


def moe_gate_up(
    x: QuantActivation,
    logits: Tensor,
    gate: QuantWeight,
    up: QuantWeight,
    shared: tuple[QuantWeight, QuantWeight] | None,
    expert_ids: Tensor,
    out: QuantActivation,
    eps: float,
    tile: RowTile | None = None,
    is_chosen: bool = False,
    pdl: bool = False,
) -> None:
    """Choose experts and run the first half of their feed-forward layers.

    x:        [num_tokens, hidden], its norm factor applied here
    logits:   [num_tokens, num_experts] f32, one column more (the shared expert's gate) where `shared` is given;
              fastest where rows start at multiples of 16 elements
    gate, up: [num_experts * ffn, hidden]; shared: (gate, up), each [ffn, hidden], or None
    expert_ids: [num_tokens, top_k] int32, written: falling weight; read, and logits ignored, where they are chosen
    out:      [num_tokens * slots, ffn] written (values, scales, sums); slots = top_k, one more with `shared`
    """
    top_k = expert_ids.shape[1]
    num_experts = logits.shape[1] - (shared is not None)
    ffn = gate.num_rows // num_experts
    shared_gate, shared_up = shared or (gate, up)
    tile = tile or expert_tile(gate.format, ffn, gate.num_cols, x.num_tokens)
    other = block_tile(shared_gate.format, gate.num_cols, tile.num_warps, tile.chunks, tile.depth)
    planes = [p for w in (gate, up, shared_gate, shared_up) for p in (w.quants, w.high, w.scales, w.supers)]
    _moe_gate_up_kernel[(ffn // 16, top_k + (shared is not None), x.num_tokens)](
        *planes, x.values.view(torch.int32), x.scales, x.sums, x.square_sums, logits, logits.stride(0),
        expert_ids, out.values, out.scales, out.sums, eps,
        FMT=int(gate.format), SHARED_FMT=int(shared_gate.format) if shared else -1, COLS=gate.num_cols, FFN=ffn,
        E=num_experts, SPAN=lane_span(num_experts), TOP_K=top_k, W=tile.row_lanes,
        RT=tile.rows_per_thread, T=tile.chunks, DEPTH=tile.depth, SHARED_W=other.row_lanes,
        SHARED_RT=other.rows_per_thread, SHARED_T=other.chunks, SHARED_DEPTH=other.depth, CHOSEN=is_chosen,
        NATIVE=has_dp4a(), PDL=pdl,
        **launch_options(tile.num_warps, pdl, THREE_OF_8_WARPS if tile.depth == 1 else None),
    )

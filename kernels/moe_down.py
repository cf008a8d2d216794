"""residual += sum_s weight_s * down_s h_s over a token's expert slots, and the next layer's input, in one launch.

Weights: softmax over the chosen logits; the shared expert's is the sigmoid of its gate's logit.

One program walks all slots of one token for 16 rows, so the sum has a fixed order and needs no atomics.
Bytes moved: the down planes of the chosen experts once per token. Accumulation as in `quant_gemv`.
Reference:   kernels/reference/quant_moe.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import emit_block
from kernels.half_rows import emit_half, half_arguments
from kernels.launch import FOUR_OF_4_WARPS, RowTile, block_tile, has_dp4a, launch_options
from kernels.quant_dot import dot_chunk
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight
from kernels.quant_unpack import chunk_columns, load_tile, unpack_scales, unpack_words


@triton.jit
def _slots(
    FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, local, ids_ptr, logits_ptr, x_ptr, xs_ptr, xm_ptr, first_slot,
    SLOTS: tl.constexpr, SPAN: tl.constexpr, ROUTED: tl.constexpr, CHOSEN: tl.constexpr, N: tl.constexpr,
    FFN: tl.constexpr, W: tl.constexpr, RT: tl.constexpr, T: tl.constexpr, NATIVE: tl.constexpr,
):
    """sum over SLOTS slots of weight * (down h), [W, RT] f32, for rows `local`; chunks of all slots end to end.

    CHOSEN: logits_ptr is where the weight of each slot stands
    """
    PER_SLOT: tl.constexpr = FFN // chunk_columns(FMT)
    STEPS: tl.constexpr = (SLOTS * PER_SLOT + T - 1) // T
    zero = tl.arange(0, W) * 0
    # Ids first, then every load that depends on them, then the arithmetic: one latency each, not one per step.
    bases = ()
    logits = ()
    for step in tl.static_range(STEPS):
        place = step * T + tl.arange(0, T)
        slot_tile = tl.minimum(place // PER_SLOT, SLOTS - 1)[:, None, None] + zero[None, :, None]
        if ROUTED:
            ids = tl.load(ids_ptr + slot_tile)
            bases = bases + (ids.to(tl.int64) * N,)
        else:
            ids = slot_tile * 0
            bases = bases + (ids.to(tl.int64),)
        logits = logits + (logits_ptr + (slot_tile if CHOSEN else ids),)
    tiles = ()
    for step in tl.static_range(STEPS):
        chunk = (step * T + tl.arange(0, T)) % PER_SLOT
        rows = bases[step] + local[None, :, :].to(tl.int64)
        tiles = tiles + (load_tile(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, chunk, FFN),)
    if ROUTED and not CHOSEN:
        # every slot's logit in each lane: [1, W, SPAN]
        every = tl.arange(0, SPAN)[None, None, :]
        ids = tl.load(ids_ptr + every + zero[None, :, None], mask=every < SLOTS, other=0)
        chosen = tl.load(logits_ptr + ids, mask=every < SLOTS, other=float("-inf"))
        largest = tl.max(chosen, axis=2)[:, :, None]
        inverse = 1.0 / tl.sum(tl.exp(chosen - largest), axis=2)[:, :, None]
    total = tl.zeros((T, W, RT), tl.float32)
    for step in tl.static_range(STEPS):
        place = step * T + tl.arange(0, T)
        logit = tl.load(logits[step])
        if CHOSEN:
            score = logit
        elif ROUTED:
            score = tl.exp(logit - largest) * inverse
        else:
            score = 1.0 / (1.0 + tl.exp(-logit))
        if STEPS * T > SLOTS * PER_SLOT:
            score = tl.where((place < SLOTS * PER_SLOT)[:, None, None], score, 0.0)
        slot = tl.minimum(place // PER_SLOT, SLOTS - 1)
        low, high = unpack_words(FMT, tiles[step], NATIVE, True)
        scale, scale_high, minimum = unpack_scales(FMT, tiles[step])
        product = dot_chunk(FMT, low, high, scale, scale_high, minimum, x_ptr, xs_ptr, xm_ptr, place % PER_SLOT,
                            first_slot + slot, zero, FFN, NATIVE)
        total += product * score
    return tl.sum(total, axis=0)


@triton.jit
def _moe_down_kernel(
    q_ptr, h_ptr, s_ptr, d_ptr, zq_ptr, zh_ptr, zs_ptr, zd_ptr, x_ptr, xs_ptr, xm_ptr, ids_ptr, logits_ptr,
    stride_logits, residual_ptr, w_ptr, v_ptr, ys_ptr, ym_ptr, yp_ptr, ss_ptr, half_ptr, factors_ptr, hints_ptr,
    FMT: tl.constexpr, SHARED_FMT: tl.constexpr, FFN: tl.constexpr, N: tl.constexpr, E: tl.constexpr,
    TOP_K: tl.constexpr, SPAN: tl.constexpr, W: tl.constexpr, RT: tl.constexpr, T: tl.constexpr,
    SHARED_W: tl.constexpr, SHARED_RT: tl.constexpr, SHARED_T: tl.constexpr, CHOSEN: tl.constexpr, FORM: tl.constexpr,
    NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    block = tl.program_id(0)
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
    offs = block * 16 + tl.arange(0, 16)
    norm = tl.load(w_ptr + offs)
    if PDL:
        gdc_wait()
    HAS_SHARED: tl.constexpr = SHARED_FMT >= 0
    slots = TOP_K + 1 if HAS_SHARED else TOP_K
    x_ptr += m * slots * (FFN // 2)
    xs_ptr += m * slots * (FFN // 16)
    xm_ptr += m * slots * (FFN // 16)
    logits_ptr += m * stride_logits
    before = tl.load(residual_ptr + m * N + offs)
    if FORM >= 0:
        hint = tl.load(hints_ptr + m)
    local = block * 16 + tl.arange(0, W)[:, None] * RT + tl.arange(0, RT)[None, :]
    y = _slots(FMT, q_ptr, h_ptr, s_ptr, d_ptr, local, ids_ptr + m * TOP_K, logits_ptr, x_ptr, xs_ptr, xm_ptr, 0,
               TOP_K, SPAN, True, CHOSEN, N, FFN, W, RT, T, NATIVE)
    y = tl.reshape(y, (16,))
    if HAS_SHARED:
        local = block * 16 + tl.arange(0, SHARED_W)[:, None] * SHARED_RT + tl.arange(0, SHARED_RT)[None, :]
        shared = _slots(SHARED_FMT, zq_ptr, zh_ptr, zs_ptr, zd_ptr, local, ids_ptr,
                        logits_ptr + (TOP_K if CHOSEN else E), x_ptr, xs_ptr, xm_ptr, TOP_K, 1, 1, False, CHOSEN, N,
                        FFN, SHARED_W, SHARED_RT, SHARED_T, NATIVE)
        y += tl.reshape(shared, (16,))
    y += before
    tl.store(residual_ptr + m * N + offs, y)
    emit_block(y, block, norm, v_ptr + m * 2 * N, ys_ptr + m * (N // 16), ym_ptr + m * (N // 16), yp_ptr + m * N,
               ss_ptr + m * (N // 16), N)
    if FORM >= 0:
        emit_half(y * norm, hint, block, m, half_ptr, factors_ptr, FORM == 1)


def down_tile(quant_format: QuantFormat, ffn: int, num_tokens: int) -> RowTile:
    """The tile that was fastest on an H200 (docs/performance.md)."""
    return block_tile(quant_format, 8 * ffn, num_warps=8 if num_tokens == 1 else 4, chunks=32)


def moe_down(
    h: QuantActivation,
    expert_ids: Tensor,
    logits: Tensor,
    down: QuantWeight,
    shared_down: QuantWeight | None,
    residual: Tensor,
    norm_weight: Tensor,
    out: QuantActivation,
    tile: RowTile | None = None,
    weights: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """The second half of the chosen experts, combined, added to the residual stream and emitted.

    h:            [num_tokens * slots, ffn]
    expert_ids:   [num_tokens, top_k] int32
    logits:       the router's, as `moe_gate_up` takes them
    down:         [num_experts * hidden, ffn]; shared_down: [hidden, ffn] or None
    residual:     [num_tokens, hidden] f32, changed in place
    norm_weight:  [hidden] f32, weight of the norm that follows
    out:          [num_tokens, hidden], every plane written
    weights:      of the slots, as `route_tokens` writes them, in place of logits; None: worked out here
    """
    scores = logits if weights is None else weights
    num_tokens, hidden = residual.shape
    tile = tile or down_tile(down.format, down.num_cols, num_tokens)
    shared = shared_down or down
    other = block_tile(shared.format, 8 * shared.num_cols, tile.num_warps, tile.chunks)
    *half, form = half_arguments(out)
    planes = [p for w in (down, shared) for p in (w.quants, w.high, w.scales, w.supers)]
    _moe_down_kernel[(hidden // 16, num_tokens)](
        *planes, h.values.view(torch.int32), h.scales, h.sums, expert_ids, scores, scores.stride(0), residual,
        norm_weight, out.values, out.scales, out.sums, out.plain, out.square_sums, *half,
        FORM=form, FMT=int(down.format), SHARED_FMT=int(shared.format) if shared_down else -1, FFN=down.num_cols,
        N=hidden, E=down.num_rows // hidden, TOP_K=expert_ids.shape[1],
        SPAN=triton.next_power_of_2(expert_ids.shape[1]),
        W=tile.row_lanes, RT=tile.rows_per_thread, T=tile.chunks,
        SHARED_W=other.row_lanes, SHARED_RT=other.rows_per_thread, SHARED_T=other.chunks,
        CHOSEN=weights is not None, NATIVE=has_dp4a(), PDL=pdl,
        **launch_options(tile.num_warps, pdl, None, FOUR_OF_4_WARPS),
    )

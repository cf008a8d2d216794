"""residual += sum_s weight_s * down_s h_s over a token's expert slots, and the next layer's input, in one launch.

Weights: softmax over the chosen logits; the shared expert's is the sigmoid of its gate's logit.

One program walks all slots of one token for 16 rows, so the sum has a fixed order and needs no atomics. Where the
choice was not made before `moe_gate_up`, a program makes it again: logits are older than h, so weights are on their way
before h is there.
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
from kernels.launch import FOUR_OF_4_WARPS, TWO_OF_4_WARPS, RowTile, block_tile, has_dp4a, launch_options
from kernels.quant_dot import dot_chunk
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight
from kernels.quant_unpack import chunk_columns, load_tile, unpack_scales, unpack_words
from kernels.slot_choice import expert_keys, expert_of, lane_span, next_best


@triton.jit
def _choice(logits_ptr, zero, E: tl.constexpr, SPAN: tl.constexpr, SLOTS: tl.constexpr):
    """Expert of each slot, a tuple of [W], as `moe_gate_up` chooses it."""
    keys = expert_keys(logits_ptr, zero, E, SPAN, EARLY=True)
    best = zero + 0x7FFFFFFF
    chosen = ()
    for _ in tl.static_range(SLOTS):
        best = next_best(keys, best)
        chosen = chosen + (expert_of(best, SPAN),)
    return chosen


@triton.jit
def _by_slot(chosen, slot):
    """What a tuple of [W] has for slots [., W or 1, .]; 0 past its end."""
    found = slot * 0
    for k in tl.static_range(len(chosen)):
        found = tl.where(slot == k, chosen[k][None, :, None], found)
    return found


@triton.jit
def _chunk_slots(zero, SLOTS: tl.constexpr, PER_SLOT: tl.constexpr, T: tl.constexpr):
    """Slot of every chunk, a tuple of [T, W, 1] a step, chunks of all slots end to end."""
    slots = ()
    for step in tl.static_range((SLOTS * PER_SLOT + T - 1) // T):
        place = step * T + tl.arange(0, T)
        slots = slots + (tl.minimum(place // PER_SLOT, SLOTS - 1)[:, None, None] + zero[None, :, None],)
    return slots


@triton.jit
def _experts(ids_ptr, chosen, slots):
    """Expert of every chunk, as `_chunk_slots`; read where it stands if none were chosen here."""
    experts = ()
    for step in tl.static_range(len(slots)):
        if len(chosen) == 0:
            experts = experts + (tl.load(ids_ptr + slots[step]),)
        else:
            experts = experts + (_by_slot(chosen, slots[step]),)
    return experts


@triton.jit
def _places(ptr, offsets):
    """Addresses, known before anything is loaded from them."""
    places = ()
    for step in tl.static_range(len(offsets)):
        places = places + (ptr + offsets[step],)
    return places


@triton.jit
def _load_slots(
    FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, local, experts, PER_SLOT: tl.constexpr, N: tl.constexpr,
    FFN: tl.constexpr, T: tl.constexpr,
):
    """Tiles of rows `local` [W, RT] of the experts' matrices, a tuple: all on their way before the first is used."""
    bases = ()
    for step in tl.static_range(len(experts)):
        bases = bases + (experts[step].to(tl.int64) * N,)
    tiles = ()
    for step in tl.static_range(len(bases)):
        chunk = (step * T + tl.arange(0, T)) % PER_SLOT
        rows = bases[step] + local[None, :, :].to(tl.int64)
        tiles = tiles + (load_tile(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, chunk, FFN),)
    return tiles


@triton.jit
def _shares(logits_ptr, chosen, SLOTS: tl.constexpr, SPAN: tl.constexpr):
    """(largest logit of the chosen, what the softmax divides by), inverse, in each lane: [1, W, 1]."""
    every = tl.arange(0, SPAN)[None, None, :] + chosen[0][None, :, None] * 0
    places = logits_ptr + _by_slot(chosen, every)
    logits = tl.load(places, mask=every < SLOTS, other=float("-inf"), cache_modifier=".cg")
    largest = tl.max(logits, axis=2)[:, :, None]
    return largest, 1.0 / tl.sum(tl.exp(logits - largest), axis=2)[:, :, None]


@triton.jit
def _add_slots(
    FMT: tl.constexpr, tiles, score_ptrs, largest, inverse, x_ptr, xs_ptr, xm_ptr, first_slot,
    SLOTS: tl.constexpr, ROUTED: tl.constexpr, CHOSEN: tl.constexpr, FFN: tl.constexpr, W: tl.constexpr,
    RT: tl.constexpr, T: tl.constexpr, NATIVE: tl.constexpr,
):
    """sum over SLOTS slots of weight * (down h), [W, RT] f32.

    score_ptrs: of each chunk's slot's weight where these are CHOSEN before, else of its logit
    """
    PER_SLOT: tl.constexpr = FFN // chunk_columns(FMT)
    zero = tl.arange(0, W) * 0
    total = tl.zeros((T, W, RT), tl.float32)
    for step in tl.static_range(len(tiles)):
        place = step * T + tl.arange(0, T)
        score = tl.load(score_ptrs[step])
        if not CHOSEN:
            score = tl.exp(score - largest) * inverse if ROUTED else 1.0 / (1.0 + tl.exp(-score))
        if len(tiles) * T > SLOTS * PER_SLOT:
            score = tl.where((place < SLOTS * PER_SLOT)[:, None, None], score, 0.0)
        slot = tl.minimum(place // PER_SLOT, SLOTS - 1)
        low, high = unpack_words(FMT, tiles[step], NATIVE, True)
        scale, scale_high, minimum = unpack_scales(FMT, tiles[step])
        product = dot_chunk(FMT, low, high, scale, scale_high, minimum, x_ptr, xs_ptr, xm_ptr, place % PER_SLOT,
                            first_slot + slot, zero, FFN, NATIVE)
        total += product * score
    return tl.sum(total, axis=0)


@triton.jit
def _own(residual_ptr, hint_ptr, FORM: tl.constexpr):
    """(16 numbers of the residual stream, the row's hint)."""
    before = tl.load(residual_ptr)
    hint = 0.0
    if FORM >= 0:
        hint = tl.load(hint_ptr)
    return before, hint


@triton.jit
def _moe_down_kernel(
    q_ptr, h_ptr, s_ptr, d_ptr, zq_ptr, zh_ptr, zs_ptr, zd_ptr, x_ptr, xs_ptr, xm_ptr, ids_ptr, logits_ptr,
    stride_logits, residual_ptr, w_ptr, v_ptr, ys_ptr, ym_ptr, yp_ptr, ss_ptr, half_ptr, factors_ptr, hints_ptr,
    FMT: tl.constexpr, SHARED_FMT: tl.constexpr, FFN: tl.constexpr, N: tl.constexpr, E: tl.constexpr,
    TOP_K: tl.constexpr, SPAN: tl.constexpr, SPAN_E: tl.constexpr, W: tl.constexpr, RT: tl.constexpr,
    T: tl.constexpr, SHARED_W: tl.constexpr, SHARED_RT: tl.constexpr, SHARED_T: tl.constexpr, CHOSEN: tl.constexpr,
    FORM: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    block = tl.program_id(0)
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
    offs = block * 16 + tl.arange(0, 16)
    norm = tl.load(w_ptr + offs)
    if CHOSEN and PDL:
        gdc_wait()
    HAS_SHARED: tl.constexpr = SHARED_FMT >= 0
    slots = TOP_K + 1 if HAS_SHARED else TOP_K
    x_ptr += m * slots * (FFN // 2)
    xs_ptr += m * slots * (FFN // 16)
    xm_ptr += m * slots * (FFN // 16)
    ids_ptr += m * TOP_K
    logits_ptr += m * stride_logits
    if CHOSEN:
        before, hint = _own(residual_ptr + m * N + offs, hints_ptr + m, FORM)
    PER_SLOT: tl.constexpr = FFN // chunk_columns(FMT)
    SHARED_PER_SLOT: tl.constexpr = FFN // chunk_columns(SHARED_FMT)
    local = block * 16 + tl.arange(0, W)[:, None] * RT + tl.arange(0, RT)[None, :]
    shared_local = block * 16 + tl.arange(0, SHARED_W)[:, None] * SHARED_RT + tl.arange(0, SHARED_RT)[None, :]
    no_slots = _chunk_slots(tl.arange(0, SHARED_W) * 0, 1, SHARED_PER_SLOT, SHARED_T)
    chosen = ()
    if not CHOSEN:
        # Logits are there since the kernel before the last one: weights need not wait for the last.
        chosen = _choice(logits_ptr, tl.arange(0, W) * 0, E, SPAN_E, TOP_K)
        if HAS_SHARED:
            shared_tiles = _load_slots(SHARED_FMT, zq_ptr, zh_ptr, zs_ptr, zd_ptr, shared_local, no_slots,
                                       SHARED_PER_SLOT, 0, FFN, SHARED_T)
    slot_of = _chunk_slots(tl.arange(0, W) * 0, TOP_K, PER_SLOT, T)
    experts = _experts(ids_ptr, chosen, slot_of)
    score_ptrs = _places(logits_ptr, slot_of if CHOSEN else experts)
    tiles = _load_slots(FMT, q_ptr, h_ptr, s_ptr, d_ptr, local, experts, PER_SLOT, N, FFN, T)
    largest = 0.0
    inverse = 0.0
    if not CHOSEN:
        largest, inverse = _shares(logits_ptr, chosen, TOP_K, SPAN)
        if PDL:
            gdc_wait()
        before, hint = _own(residual_ptr + m * N + offs, hints_ptr + m, FORM)
    y = _add_slots(FMT, tiles, score_ptrs, largest, inverse, x_ptr, xs_ptr, xm_ptr, 0, TOP_K, True, CHOSEN, FFN, W, RT,
                   T, NATIVE)
    y = tl.reshape(y, (16,))
    if HAS_SHARED:
        if CHOSEN:
            shared_tiles = _load_slots(SHARED_FMT, zq_ptr, zh_ptr, zs_ptr, zd_ptr, shared_local, no_slots,
                                       SHARED_PER_SLOT, 0, FFN, SHARED_T)
        score_ptrs = _places(logits_ptr + (TOP_K if CHOSEN else E), no_slots)
        shared = _add_slots(SHARED_FMT, shared_tiles, score_ptrs, 0.0, 0.0, x_ptr, xs_ptr, xm_ptr, TOP_K, 1, False,
                            CHOSEN, FFN, SHARED_W, SHARED_RT, SHARED_T, NATIVE)
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
    expert_ids:   [num_tokens, top_k] int32, read where `weights` is given
    logits:       the router's, as `moe_gate_up` takes them. Without `weights` the experts are the best by these,
                  and with pdl the kernel ahead must signal only when its own wait is over, as `moe_gate_up` does
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
        SPAN=triton.next_power_of_2(expert_ids.shape[1]), SPAN_E=lane_span(down.num_rows // hidden),
        W=tile.row_lanes, RT=tile.rows_per_thread, T=tile.chunks,
        SHARED_W=other.row_lanes, SHARED_RT=other.rows_per_thread, SHARED_T=other.chunks,
        CHOSEN=weights is not None, NATIVE=has_dp4a(), PDL=pdl,
        **launch_options(tile.num_warps, pdl, None, TWO_OF_4_WARPS if weights is None else FOUR_OF_4_WARPS),
    )

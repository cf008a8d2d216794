"""A random token per row among those that pass top_k, top_p and min_p: no sort, no wait, the same bits in any batch.

A filter keeps the tokens whose logit is at least a cut-off, and each cut-off is the largest t with F(t) >= target, F
being how many tokens (top_k) or how much probability (top_p) lie at t or above. As 32-bit numbers that order like the
floats, t is found four bits a launch: every program counts its part of a row above 16 candidates and adds the counts
up with integer atomics, so order does not matter. Probabilities are fixed-point multiples of 2^-40 of the best token's.
The winner has the largest logit + Gumbel noise; the noise is a hash of (key, token id).
Bytes moved: the logits, once per launch (from L2: at most 20 launches).
Reference:   kernels/reference/draw_tokens.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 2048  # logits a program works on
DIGITS = 8    # launches for a cut-off, 4 bits each
# Scratch of a row, int64 words, zeros at the start: the best logit, the winner, then for top_k and for top_p the
# cut-off before each launch and what each launch counted.
_WIDTH, _TOP_K = 16, 2
_TOP_P = _TOP_K + DIGITS * (1 + _WIDTH)
_SCRATCH = _TOP_P + DIGITS * (1 + _WIDTH)

WIDTH = tl.constexpr(_WIDTH)
SCRATCH = tl.constexpr(_SCRATCH)
BEST = tl.constexpr(0)
WINNER = tl.constexpr(1)
TOP_K = tl.constexpr(_TOP_K)
TOP_P = tl.constexpr(_TOP_P)
COUNTS = tl.constexpr(DIGITS)  # where they begin, behind the cut-offs
LAST_DIGIT = tl.constexpr(DIGITS - 1)
LAST_ID = tl.constexpr(0x7FFFFFFF)


@dataclass(frozen=True, slots=True)
class DrawFilters:
    """Per row: top_k [num_rows] int64, 0 is off; top_p [num_rows] f32, 1 is off; log_min_p [num_rows] f32, -inf is off.

    has_top_k, has_top_p: whether any row uses the filter
    """

    top_k: Tensor
    top_p: Tensor
    log_min_p: Tensor
    has_top_k: bool
    has_top_p: bool


@triton.jit
def _ordered(x):
    """f32 -> uint32 that orders as the floats do; both zeros are one number."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -0x80000000)).to(tl.uint32, bitcast=True)


@triton.jit
def _float(ordered):
    """Inverse of `_ordered`."""
    bits = ordered.to(tl.int32, bitcast=True)
    return (bits ^ ((~bits >> 31) | -0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def _best(row_ptr):
    return _float(tl.load(row_ptr + BEST).to(tl.uint32))


@triton.jit
def _scale_kernel(x_ptr, temperature_ptr, y_ptr, scratch_ptr, num_cols, CHUNK: tl.constexpr):
    m = tl.program_id(1).to(tl.int64)
    offs = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(x_ptr + m * num_cols + offs, mask=offs < num_cols, other=float("-inf"))
    y = tl.div_rn(x, tl.zeros_like(x) + tl.load(temperature_ptr + m))
    tl.store(y_ptr + m * num_cols + offs, y, mask=offs < num_cols)
    tl.atomic_max(scratch_ptr + m * SCRATCH + BEST, tl.max(_ordered(y).to(tl.int64), axis=0))


@triton.jit
def _narrow(filter_ptr, target, digit):
    """The cut-off after launch number `digit`, from the one before it; counts fall along the candidates."""
    counts = tl.load(filter_ptr + COUNTS + digit * WIDTH + tl.arange(0, WIDTH))
    found = tl.sum((counts.to(tl.float64) >= target).to(tl.int32), axis=0) - 1
    return tl.load(filter_ptr + digit).to(tl.uint32) + (tl.maximum(found, 0) << (28 - 4 * digit)).to(tl.uint32)


@triton.jit
def _count_target(top_k_ptr, m, num_cols):
    return tl.minimum(tl.load(top_k_ptr + m), num_cols).to(tl.float64)


@triton.jit
def _weight_target(row_ptr, top_p_ptr, m):
    """The first launch's first count is the whole."""
    return tl.load(top_p_ptr + m).to(tl.float64) * tl.load(row_ptr + TOP_P + COUNTS).to(tl.float64)


@triton.jit(do_not_specialize=["digit"])
def _digit_kernel(
    y_ptr, scratch_ptr, top_k_ptr, top_p_ptr, num_cols, digit, IS_TOP_P: tl.constexpr, CHUNK: tl.constexpr,
    PIECE: tl.constexpr,
):
    """One more digit of a cut-off: top_p's among what top_k keeps, or top_k's. A thread has all candidates of its
    tokens, so nothing is exchanged before the sums."""
    m = tl.program_id(1).to(tl.int64)
    is_off = tl.load(top_p_ptr + m) >= 1.0 if IS_TOP_P else tl.load(top_k_ptr + m) <= 0
    if is_off:
        return
    row_ptr = scratch_ptr + m * SCRATCH
    filter_ptr = row_ptr + (TOP_P if IS_TOP_P else TOP_K)
    base = tl.zeros((), tl.uint32)
    if digit > 0:
        target = _weight_target(row_ptr, top_p_ptr, m) if IS_TOP_P else _count_target(top_k_ptr, m, num_cols)
        base = _narrow(filter_ptr, target, digit - 1)
        if tl.program_id(0) == 0:
            tl.store(filter_ptr + digit, base.to(tl.int64))
    floor = base
    if IS_TOP_P:
        floor = _narrow(row_ptr + TOP_K, _count_target(top_k_ptr, m, num_cols), LAST_DIGIT)
        best = _best(row_ptr)
    every = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    largest = tl.max(tl.load(y_ptr + m * num_cols + every, mask=every < num_cols, other=float("-inf")), axis=0)
    if _ordered(largest) < tl.maximum(base, floor):  # most parts, once the first digit is known
        return
    shift = (28 - 4 * digit).to(tl.uint32)
    candidate = tl.arange(0, WIDTH)[:, None]
    counts = tl.zeros((WIDTH, PIECE), tl.int64 if IS_TOP_P else tl.int32)
    for start in tl.static_range(0, CHUNK, PIECE):
        offs = tl.program_id(0) * CHUNK + start + tl.arange(0, PIECE)
        inside = offs < num_cols
        y = tl.load(y_ptr + m * num_cols + offs, mask=inside, other=float("-inf"))
        ordered = _ordered(y)
        above = tl.minimum((ordered - base) >> shift, WIDTH - 1).to(tl.int32)
        above = tl.where(inside & (ordered >= base), above, -1)[None, :]
        if IS_TOP_P:
            weight = tl.where(y <= best, tl.exp(y - best), 0.0) * 1099511627776.0 + 0.5  # no NaN
            weight = tl.where(ordered >= floor, weight, 0.0).to(tl.int64)
            counts += tl.where(above >= candidate, weight[None, :], 0)
        else:
            counts += (above >= candidate).to(tl.int32)
    total = tl.sum(counts, axis=1).to(tl.int64)
    tl.atomic_add(filter_ptr + COUNTS + digit * WIDTH + tl.arange(0, WIDTH), total)


@triton.jit
def _rotated_mix(bits, FIRST: tl.constexpr, A: tl.constexpr, SECOND: tl.constexpr, B: tl.constexpr):
    bits ^= bits >> FIRST
    bits *= A
    bits ^= bits >> SECOND
    bits *= B
    return bits ^ (bits >> 16)


@triton.jit
def gumbel(low, high, token_ids):
    """Standard Gumbel noise of a hash, f32; low, high, token_ids: int32."""
    A: tl.constexpr = 0x85EBCA6B
    B: tl.constexpr = 0xC2B2AE35
    C: tl.constexpr = 0x7FEB352D
    D: tl.constexpr = 0x846CA68B
    bits = _rotated_mix((token_ids ^ low).to(tl.uint32, bitcast=True), 16, A, 13, B)
    bits = _rotated_mix(bits + high.to(tl.uint32, bitcast=True), 16, C, 15, D)
    uniform = ((bits & 0x7FFFFFFF).to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10
    uniform = tl.minimum(uniform, 0.999999940395355224609375)
    rest = 1.0 - uniform  # log(1 - u) that keeps its precision near 0 (W. Kahan)
    log1p = tl.where(rest == 1.0, -uniform, tl.log(rest) * tl.div_rn(-uniform, tl.where(rest == 1.0, -1.0, rest - 1.0)))
    return -tl.log(-log1p)


@triton.jit(do_not_specialize=["num_rows"])
def _perturb_kernel(
    y_ptr, scratch_ptr, keys_ptr, top_k_ptr, top_p_ptr, log_min_p_ptr, num_cols, num_rows, HAS_FILTERS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    m = tl.program_id(1).to(tl.int64)
    row_ptr = scratch_ptr + m * SCRATCH
    offs = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    y = tl.load(y_ptr + m * num_cols + offs, mask=offs < num_cols, other=float("-inf"))
    kept = offs < num_cols
    if HAS_FILTERS:
        kept = kept & (y >= _best(row_ptr) + tl.load(log_min_p_ptr + m))
        if tl.load(top_k_ptr + m) > 0:
            kept = kept & (_ordered(y) >= _narrow(row_ptr + TOP_K, _count_target(top_k_ptr, m, num_cols), LAST_DIGIT))
        if tl.load(top_p_ptr + m) < 1.0:
            kept = kept & (_ordered(y) >= _narrow(row_ptr + TOP_P, _weight_target(row_ptr, top_p_ptr, m), LAST_DIGIT))
    low = tl.zeros_like(offs) + tl.load(keys_ptr + m)
    high = tl.zeros_like(offs) + tl.load(keys_ptr + num_rows + m)
    noisy = tl.where(kept, y + gumbel(low, high, offs), float("-inf"))
    tl.atomic_max(row_ptr + WINNER, tl.max((_ordered(noisy).to(tl.int64) << 31) | (LAST_ID - offs), axis=0))


@triton.jit
def _winner_kernel(scratch_ptr, ids_ptr, num_cols):
    m = tl.program_id(0).to(tl.int64)
    winner = LAST_ID - (tl.load(scratch_ptr + m * SCRATCH + WINNER) & LAST_ID)
    tl.store(ids_ptr + m, tl.minimum(winner, num_cols - 1))


def draw_tokens(logits: Tensor, temperature: Tensor, keys: Tensor, filters: DrawFilters | None) -> Tensor:
    """Draw a token per row from softmax(logits / temperature) restricted to the filters.

    logits:       [num_rows, vocab_size] f32, rows contiguous, not changed
    temperature:  [num_rows] f32, above 0
    keys:         [2, num_rows] int32, contiguous, halves of the noise keys
    filters:      top_k first, top_p of what that leaves, then min_p relative to the best; None: none
    returns       [num_rows] int64; some token where the logits are NaN
    """
    num_rows, num_cols = logits.shape
    scratch = torch.zeros(num_rows, _SCRATCH, dtype=torch.int64, device=logits.device)
    scaled = torch.empty_like(logits)
    ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    grid = (triton.cdiv(num_cols, CHUNK), num_rows)
    _scale_kernel[grid](logits, temperature, scaled, scratch, num_cols, CHUNK=CHUNK)
    top_k = top_p = log_min_p = temperature  # addresses that nobody reads
    if filters is not None:
        top_k, top_p, log_min_p = filters.top_k, filters.top_p, filters.log_min_p
        for is_top_p, is_used in ((False, filters.has_top_k), (True, filters.has_top_p)):
            for digit in range(DIGITS if is_used else 0):
                _digit_kernel[grid](scaled, scratch, top_k, top_p, num_cols, digit, IS_TOP_P=is_top_p, CHUNK=CHUNK,
                                    PIECE=256, num_warps=8)
    _perturb_kernel[grid](scaled, scratch, keys, top_k, top_p, log_min_p, num_cols, num_rows,
                          HAS_FILTERS=filters is not None, CHUNK=CHUNK)
    _winner_kernel[(num_rows,)](scratch, ids, num_cols)
    return ids

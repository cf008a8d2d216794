"""Prompts' chunks through a delta-net layer's causal convolution of four taps, SiLU and the norms of q and k.

y[t] = silu(sum_k taps[k] x[t - 3 + k]); q and k then have length one per head, q times d^-1/2. Inputs before a chunk
come from the ring that decode steps keep, which `move_rings` moves on afterwards.
Bytes moved: x read (four times through the caches), y written. Accumulation: f32.
Reference:   kernels/reference/conv_heads.py
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.spans import CHUNK, Spans

TAPS = 4
L2_EPS = 1e-6  # kernels/reference/gated_delta_rule.py
TOKENS = 32    # of a program
RING_CHANNELS = 512


@triton.jit
def _conv_heads_kernel(
    x_ptr, stride_x, ring_ptr, taps_ptr, y_ptr, sequences_ptr, chunks_ptr, HEADS: tl.constexpr, HK: tl.constexpr,
    D: tl.constexpr, EPS: tl.constexpr, TAPS: tl.constexpr, CHUNK: tl.constexpr, TOKENS: tl.constexpr,
):
    head = tl.program_id(0)
    chunk = tl.program_id(1) // (CHUNK // TOKENS)
    sequence = tl.load(chunks_ptr + 2 * chunk)
    if sequence >= 0:
        first = tl.load(chunks_ptr + 2 * chunk + 1) + tl.program_id(1) % (CHUNK // TOKENS) * TOKENS
        first_row = tl.load(sequences_ptr + 5 * sequence)
        num_tokens = tl.load(sequences_ptr + 5 * sequence + 1)
        start = tl.load(sequences_ptr + 5 * sequence + 2)
        slot = tl.load(sequences_ptr + 5 * sequence + 3).to(tl.int64)
        token = (first + tl.arange(0, TOKENS))[:, None]
        real = token < num_tokens
        own = head * D + tl.arange(0, D)
        channel = own[None, :]
        total = tl.zeros((TOKENS, D), tl.float32)
        C: tl.constexpr = HEADS * D
        for back in tl.static_range(TAPS):
            at = token - back
            new = tl.load(x_ptr + (first_row + at).to(tl.int64) * stride_x + channel, mask=real & (at >= 0), other=0.0)
            column = (start + at + TAPS) % TAPS
            old = tl.load(ring_ptr + (slot * TAPS + column) * C + channel,
                          mask=(at < 0) & (start + at >= 0) & (channel >= 0), other=0.0)
            total += (new + old) * tl.load(taps_ptr + (TAPS - 1 - back) * C + own)[None, :]
        y = total / (1.0 + tl.exp(-total))
        if head < 2 * HK:
            factor = tl.rsqrt(tl.sum(y * y, axis=1) + EPS)
            y *= tl.where(head < HK, factor * D**-0.5, factor)[:, None]
        y = tl.minimum(tl.maximum(y, -65504.0), 65504.0)
        tl.store(y_ptr + (first_row + token).to(tl.int64) * C + channel, y.to(y_ptr.dtype.element_ty), mask=real)


@triton.jit
def _move_rings_kernel(
    x_ptr, stride_x, ring_ptr, sequences_ptr, C: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr,
):
    sequence = tl.program_id(1)
    num_tokens = tl.load(sequences_ptr + 5 * sequence + 1)
    if num_tokens > 0:
        first_row = tl.load(sequences_ptr + 5 * sequence)
        start = tl.load(sequences_ptr + 5 * sequence + 2)
        slot = tl.load(sequences_ptr + 5 * sequence + 3).to(tl.int64)
        channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
        for back in tl.static_range(TAPS):
            at = num_tokens - 1 - back
            position = start + at
            column = (position + TAPS) % TAPS
            if (at >= 0) | (start == 0):
                x = tl.load(x_ptr + (first_row + at).to(tl.int64) * stride_x + channel,
                            mask=(channel < C) & (at >= 0), other=0.0)
                tl.store(ring_ptr + (slot * TAPS + column) * C + channel, x, mask=channel < C)


def conv_heads(x: Tensor, taps: Tensor, ring: Tensor, spans: Spans, num_k_heads: int, out: Tensor) -> None:
    """Convolve, apply SiLU, normalise; the rings move on.

    x:     [num_tokens, channels] f32, rows at any stride
    taps:  [4, channels] f32
    ring:  [num_slots, 4, channels] f32, the input of position p in column p % 4; the sequences' slots change
    out:   [num_tokens, heads, d] f16, heads * d = channels: num_k_heads of q, as many of k, the rest v; written
    """
    _, heads, d = out.shape
    common = {"TAPS": TAPS}
    _conv_heads_kernel[(heads, spans.chunks.shape[0] * (CHUNK // TOKENS))](
        x, x.stride(0), ring, taps, out, spans.sequences, spans.chunks, HEADS=heads, HK=num_k_heads, D=d, EPS=L2_EPS,
        CHUNK=CHUNK, TOKENS=TOKENS, num_warps=4, **common,
    )
    channels = heads * d
    _move_rings_kernel[(triton.cdiv(channels, RING_CHANNELS), spans.sequences.shape[0])](
        x, x.stride(0), ring, spans.sequences, C=channels, CHANNELS=RING_CHANNELS, num_warps=4, **common,
    )

"""A chunk of one sequence through a delta-net layer's causal convolution of four taps and SiLU.

y[t] = silu(sum_k taps[:, k] x[t - 3 + k]); inputs before the chunk come from the ring that decode steps keep.
Bytes moved: x read (four times through the caches), y written. Accumulation: f32.
Reference:   kernels/reference/causal_conv1d.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TAPS = 4
BLOCK_C, BLOCK_T = 128, 8  # channels and tokens of a program


@triton.jit(do_not_specialize=["start", "num_tokens"])  # one compilation for chunks of any length
def _causal_conv_silu_kernel(
    x_ptr, stride_x, ring_ptr, taps_ptr, y_ptr, start, num_tokens, C, TAPS: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    channel = (tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    token = (tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    real = (token < num_tokens) & (channel < C)
    total = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
    for back in tl.static_range(TAPS):
        at = token - back
        inside = at >= 0
        new = tl.load(x_ptr + at.to(tl.int64) * stride_x + channel, mask=real & inside, other=0.0)
        column = (start + at + TAPS) % TAPS
        old = tl.load(ring_ptr + column * C + channel, mask=real & (at < 0), other=0.0)
        tap = tl.load(taps_ptr + channel * TAPS + TAPS - 1 - back, mask=channel < C, other=0.0)
        total += tl.where(inside, new, old) * tap
    tl.store(y_ptr + token.to(tl.int64) * C + channel, total / (1.0 + tl.exp(-total)), mask=real)


def causal_conv_silu(x: Tensor, taps: Tensor, ring: Tensor, start: int) -> Tensor:
    """[num_tokens, channels] f32; the ring moves on.

    x:     [num_tokens, channels] f32, rows at any stride
    taps:  [channels, 4] f32
    ring:  [4, channels] f32, the input of position p in column p % 4, zeros before the sequence; changed in place
    start: position of the first token
    """
    num_tokens, channels = x.shape
    out = torch.empty(num_tokens, channels, device=x.device)
    grid = (triton.cdiv(channels, BLOCK_C), triton.cdiv(num_tokens, BLOCK_T))
    _causal_conv_silu_kernel[grid](
        x, x.stride(0), ring, taps, out, start, num_tokens, channels, TAPS=TAPS, BLOCK_C=BLOCK_C, BLOCK_T=BLOCK_T,
        num_warps=4,
    )
    last = x[-TAPS:]
    end = start + num_tokens
    if num_tokens >= TAPS:
        ring.copy_(torch.roll(last, end % TAPS, 0))
    else:
        for position in range(start, end):
            ring[position % TAPS] = x[position - start]
    return out

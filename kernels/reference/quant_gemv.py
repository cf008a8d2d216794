"""Products of quantised weights with 16-bit activations, and the making of such activations, in plain float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.quant_format import (
    ACTIVATION_BLOCK,
    ACTIVATION_LEVELS,
    TINY_ACTIVATION,
    QuantActivation,
    QuantFormat,
    QuantWeight,
)
from kernels.reference.quant_weight import dequantize


def quantize_rows(x: Tensor, weight: Tensor | None = None) -> QuantActivation:
    """16-bit blocks of 16 of x * weight; the RMS factor is left to the consumer.

    x:       [num_tokens, num_cols] f32
    weight:  [num_cols] f32, the norm's weight; None: ones
    """
    num_tokens, num_cols = x.shape
    plain = x if weight is None else x * weight
    blocks = plain.reshape(num_tokens, -1, ACTIVATION_BLOCK)
    amax = blocks.abs().amax(-1)
    inverse = ACTIVATION_LEVELS / amax.clamp(min=TINY_ACTIVATION)
    values = torch.floor(blocks * inverse[..., None] + 0.5)
    scales = amax / ACTIVATION_LEVELS
    square_sums = (x.reshape(num_tokens, -1, ACTIVATION_BLOCK) ** 2).sum(-1)
    sums = scales * values.sum(-1)
    integers = even_odd(values).to(torch.int32).reshape(num_tokens, num_cols)
    high = (integers + 128) >> 8
    values = torch.stack((high, integers - 256 * high), dim=1).to(torch.int8)
    return QuantActivation(values, even_odd(scales), even_odd(sums), plain, square_sums)


def even_odd(blocks: Tensor) -> Tensor:
    """Blocks (dimension 1) reordered: the even ones, then the odd ones."""
    return torch.cat([blocks[:, 0::2], blocks[:, 1::2]], dim=1).contiguous()


def dequantize_rows(x: QuantActivation) -> Tensor:
    """[num_tokens, num_cols] f32: what the integers and scales stand for."""
    integers = 256.0 * x.values[:, 0] + x.values[:, 1]
    blocks = integers.reshape(x.num_tokens, -1, ACTIVATION_BLOCK) * x.scales[..., None]
    even, odd = blocks.chunk(2, dim=1)
    return torch.stack([even, odd], dim=2).reshape(x.num_tokens, x.num_cols)


def rms_factor(x: QuantActivation, eps: float) -> Tensor:
    """[num_tokens, 1] f32: 1 / sqrt(mean(x^2) + eps)."""
    return torch.rsqrt(x.square_sums.sum(-1, keepdim=True) / x.num_cols + eps)


def quant_gemv(x: QuantActivation, weights: Sequence[QuantWeight], eps: float | None) -> Tensor:
    """[num_tokens, sum of rows] f32; F32 matrices multiply the unquantised row, all others its integers."""
    quantised = dequantize_rows(x)
    parts = [(x.plain if w.format == QuantFormat.F32 else quantised) @ dequantize(w).T for w in weights]
    y = torch.cat(parts, dim=-1)
    return y if eps is None else y * rms_factor(x, eps)

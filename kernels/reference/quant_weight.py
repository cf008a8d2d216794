"""Planes -> float32, the specification of every kernel that reads a `QuantWeight`. Knows nothing of ggml's own
layout."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant_format import QuantFormat, QuantWeight

# IQ4_NL's code book and twice the values of an E2M1 number (GGUF specification of the formats)
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def dequantize(weight: QuantWeight) -> Tensor:
    """returns [num_rows, num_cols] f32, bit for bit what ggml's own dequantisation gives."""
    if weight.format.is_float:
        return weight.quants.float()
    if weight.format == QuantFormat.Q8_0:
        q = weight.quants.view(torch.int8).reshape(weight.num_rows, -1, 32).float()
        return (weight.scales.float()[..., None] * q).reshape(weight.num_rows, weight.num_cols)
    q = _integers(weight)  # [num_rows, num_cols / 32, 32] int32
    return _scaled(weight, q.float()).reshape(weight.num_rows, weight.num_cols)


def _integers(weight: QuantWeight) -> Tensor:
    words = weight.quants.view(torch.uint8).reshape(weight.num_rows, -1, 16)
    q = torch.cat([words & 15, words >> 4], dim=-1).int()
    if weight.format in (QuantFormat.Q5_0, QuantFormat.Q5_1, QuantFormat.Q5_K):
        planes = weight.high.view(torch.uint8).reshape(weight.num_rows, -1, 1, 4)
        shifts = torch.arange(8, dtype=torch.uint8, device=q.device)[:, None]
        q = q + 16 * ((planes >> shifts) & 1).int().flatten(-2)
    elif weight.format == QuantFormat.Q6_K:
        planes = weight.high.view(torch.uint8).reshape(weight.num_rows, -1, 2, 1, 4)
        shifts = 2 * torch.arange(4, dtype=torch.uint8, device=q.device)[:, None]
        q = q + 16 * ((planes >> shifts) & 3).int().flatten(-3)
    elif weight.format in (QuantFormat.IQ4_NL, QuantFormat.IQ4_XS, QuantFormat.MXFP4, QuantFormat.NVFP4):
        values = IQ4_VALUES if weight.format in (QuantFormat.IQ4_NL, QuantFormat.IQ4_XS) else FP4_VALUES
        q = torch.tensor(values, dtype=torch.int32, device=q.device)[q]
    return q


def _pair(plane: Tensor) -> tuple[Tensor, Tensor]:
    halves = plane.view(torch.float16).reshape(*plane.shape, 2).float()
    return halves[..., 0], halves[..., 1]


def _scaled(weight: QuantWeight, q: Tensor) -> Tensor:
    kind = weight.format
    if kind in (QuantFormat.Q4_0, QuantFormat.Q5_0):
        return weight.scales.float()[..., None] * (q - (8 if kind == QuantFormat.Q4_0 else 16))
    if kind == QuantFormat.IQ4_NL:
        return weight.scales.float()[..., None] * q
    if kind in (QuantFormat.Q4_1, QuantFormat.Q5_1):
        d, m = _pair(weight.scales)
        return d[..., None] * q + m[..., None]
    if kind == QuantFormat.MXFP4:
        return torch.ldexp(q, weight.scales.int()[..., None] - 128)
    if kind in (QuantFormat.Q4_K, QuantFormat.Q5_K):
        d, dmin = (x.repeat_interleave(8, dim=1)[..., None] for x in _pair(weight.supers))
        pairs = weight.scales.view(torch.uint8).reshape(weight.num_rows, -1, 2).float()
        return (d * pairs[..., :1]) * q - dmin * pairs[..., 1:]
    if kind == QuantFormat.NVFP4:
        scales = _e4m3(weight.scales.view(torch.uint8)).reshape(weight.num_rows, -1, 2) * 0.5
        values = scales.repeat_interleave(16, dim=-1) * q
        return values * weight.supers.reshape(-1, 1, 1)
    d = weight.supers.float().repeat_interleave(8, dim=1)[..., None]
    if kind == QuantFormat.IQ4_XS:
        return (d * weight.scales.float()[..., None]) * q
    scales = weight.scales.view(torch.int8).reshape(weight.num_rows, -1, 2).float()  # Q6_K: one per 16
    return (d * scales).repeat_interleave(16, dim=-1) * (q - 32)


def _e4m3(x: Tensor) -> Tensor:
    """uint8 of unsigned E4M3 -> f32; 0x7F stands for zero."""
    exponent, mantissa = (x >> 3 & 15).int(), (x & 7).float()
    value = torch.where(exponent == 0, mantissa * 2.0**-9, torch.ldexp(1 + mantissa / 8, exponent - 7))
    return torch.where(x == 0x7F, torch.zeros_like(value), value)

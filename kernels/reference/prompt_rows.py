"""kernels/prompt_rows.py in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.rms_norm import rms_norm

F16_MAX = 65504.0


def _store(target: Tensor, values: Tensor) -> None:
    target.copy_(values.clamp(-F16_MAX, F16_MAX) if target.dtype == torch.float16 else values)


def add_norm(
    x: Tensor, added: tuple[Tensor, ...], post: tuple[Tensor, float] | None, norm: Tensor, eps: float, half: Tensor,
    plain: Tensor | None, factor: float = 1.0,
) -> None:
    """The kernel's arguments and results."""
    if added:
        y = sum(added[1:], start=added[0] * factor)
        x += y if post is None else rms_norm(y, *post)
    hidden = rms_norm(x, norm, eps)
    _store(half, hidden)
    if plain is not None:
        plain.copy_(hidden)


def gated_norm(x: Tensor, gate: Tensor, norm: Tensor, eps: float, out: Tensor) -> None:
    """The kernel's arguments and results."""
    normed = rms_norm(x.float().unflatten(1, (-1, norm.shape[0])), norm, eps).flatten(1)
    _store(out, normed * F.silu(gate))


def gate_up(x: Tensor, row_gate: Tensor | None, is_gelu: bool, out: Tensor, factor: float = 1.0) -> None:
    """The kernel's arguments and results."""
    gate, up = x[:, : out.shape[1]], x[:, out.shape[1] :]
    y = (F.gelu(gate, approximate="tanh") if is_gelu else F.silu(gate)) * up * factor
    _store(out, y if row_gate is None else y * torch.sigmoid(row_gate)[:, None])

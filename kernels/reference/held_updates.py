"""Updates of delta-net states that are held back (kernels/held_updates.py), in plain float32."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.held_updates import COLUMNS


def settled(state: Tensor, held: Tensor) -> Tensor:
    """[num_slots, num_v_heads, d, d]: `state` with the updates that `held` has of it."""
    num_slots, num_v_heads, d, _ = state.shape
    keys, errors = held[:, :-num_v_heads, :-1], held[:, -num_v_heads:, :-1]
    num_held, columns = keys.shape[2], min(COLUMNS, d)
    marks = held[:, -num_v_heads:, -1].reshape(num_slots, num_v_heads, -1, columns)[..., :num_held]
    is_held = marks < 0
    logs = torch.where(is_held, marks + 1, 0)
    total = logs.amin(-1, keepdim=True)
    shares = torch.where(is_held, torch.exp(total - logs), 0).transpose(2, 3).repeat_interleave(columns, dim=3)
    keys = keys.repeat(1, num_v_heads // keys.shape[1], 1, 1)
    some = shares > 0  # the other rows may hold anything
    added = torch.where(some, errors, 0) * shares
    keys = torch.where(some.any(-1, keepdim=True), keys, 0)
    decay = total.exp().transpose(2, 3).repeat_interleave(columns, dim=3)
    return state * decay + torch.einsum("shud,shue->shde", keys, added)


def settle(state: Tensor, held: Tensor) -> None:
    """Write `settled` to `state`; `held` holds nothing afterwards."""
    state.copy_(settled(state, held))
    held[:, -state.shape[1] :, -1] = 0

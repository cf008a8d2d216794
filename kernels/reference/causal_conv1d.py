"""Depthwise causal convolution over time with the last inputs of each sequence carried between steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ConvPlan:
    """Where each sequence's rows lie once its carried columns are put before them; the same for every layer."""

    num_rows: int          # num_tokens + num_seqs * (kernel - 1)
    carried_rows: Tensor   # [num_seqs * (kernel - 1)] int64, where the carried columns go
    token_rows: Tensor     # [num_tokens] int64, where the step's tokens go
    last_rows: Tensor      # [num_seqs * (kernel - 1)] int64, what is carried to the next step


def conv_plan(query_lens: Sequence[int], kernel: int, device: torch.device) -> ConvPlan:
    """Lay out carried columns and new tokens, sequence after sequence."""
    carry = kernel - 1
    lens = torch.tensor(query_lens, device=device)
    ends = torch.cumsum(lens + carry, 0)
    starts = ends - lens - carry
    carried = torch.arange(carry, device=device)
    is_token = torch.ones(int(sum(query_lens)) + carry * len(query_lens), dtype=torch.bool, device=device)
    carried_rows = (starts[:, None] + carried).flatten()
    is_token[carried_rows] = False
    last_rows = (ends[:, None] - carry + carried).flatten()
    return ConvPlan(is_token.numel(), carried_rows, is_token.nonzero().flatten(), last_rows)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    conv_state: Tensor,
    state_slots: Tensor,
    plan: ConvPlan,
    silu: Callable[[Tensor], Tensor] = F.silu,
) -> Tensor:
    """silu(sum_j weight[:, j] * x[t - kernel + 1 + j]) per channel; tap kernel-1 multiplies the current token.

    x:           [num_tokens, channels] f32, sequences end to end
    weight:      [channels, kernel] f32
    conv_state:  [num_slots, channels, kernel - 1] f32, the inputs before the step; rows state_slots changed in place
    state_slots: [num_seqs] int64
    returns      [num_tokens, channels] f32
    """
    channels, kernel = weight.shape
    rows = x.new_empty(plan.num_rows, channels)
    rows[plan.carried_rows] = conv_state[state_slots].transpose(1, 2).reshape(-1, channels)
    rows[plan.token_rows] = x
    out = rows[plan.token_rows] * weight[:, -1]
    for tap in range(kernel - 1):
        out.addcmul_(rows[plan.token_rows - (kernel - 1 - tap)], weight[:, tap])
    conv_state[state_slots] = rows[plan.last_rows].view(-1, kernel - 1, channels).transpose(1, 2)
    return silu(out)


def causal_conv_silu(x: Tensor, taps: Tensor, ring: Tensor, start: int) -> Tensor:
    """`causal_conv1d` of one sequence, on the ring that decode steps keep; taps: [num_taps, channels]."""
    num_taps = taps.shape[0]
    rows = torch.cat((torch.roll(ring, -(start % num_taps), 0)[1:], x))
    out = x * taps[-1]
    for tap in range(num_taps - 1):
        out.addcmul_(rows[tap : tap + x.shape[0]], taps[tap])
    for position in range(max(start, start + x.shape[0] - num_taps), start + x.shape[0]):
        ring[position % num_taps] = x[position - start]
    return F.silu(out)

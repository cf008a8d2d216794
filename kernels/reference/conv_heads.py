"""kernels/conv_heads.py in plain torch, sequence after sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.causal_conv1d import causal_conv_silu
from kernels.reference.gated_delta_rule import l2_normalize
from kernels.spans import Spans


def conv_heads(x: Tensor, taps: Tensor, ring: Tensor, spans: Spans, num_k_heads: int, out: Tensor) -> None:
    """The kernel's arguments and results."""
    heads, d = out.shape[1:]
    for first, count, start, slot, _ in spans.sequences.tolist():
        if count:
            if start == 0:
                ring[slot].zero_()
            y = causal_conv_silu(x[first : first + count], taps, ring[slot], start).unflatten(1, (heads, d))
            q, k, v = torch.split(y, [num_k_heads, num_k_heads, heads - 2 * num_k_heads], dim=1)
            y = torch.cat((l2_normalize(q) * d**-0.5, l2_normalize(k), v), dim=1)
            out[first : first + count] = y.to(out.dtype)

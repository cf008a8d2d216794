"""kernels/delta_rule_chunks.py and kernels/delta_rule_walk.py together in plain torch, sequence after sequence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.delta_rule_chunks import DeltaRuleInputs
from kernels.reference.gated_delta_rule import chunked_gated_delta_rule
from kernels.reference.held_updates import settle
from kernels.spans import Spans


def delta_rule(inputs: DeltaRuleInputs, spans: Spans, state: Tensor, held: Tensor, out: Tensor) -> None:
    """Outputs [num_tokens, num_v_heads * d] and the states of the sequences' slots, in f32; nothing of them is held."""
    heads = inputs.heads.float()
    repeats = (1, inputs.num_v_heads // inputs.num_k_heads, 1)
    q, k, v = torch.split(heads, [inputs.num_k_heads, inputs.num_k_heads, inputs.num_v_heads], dim=1)
    q, k = q.repeat(repeats), k.repeat(repeats)
    g = inputs.a * F.softplus(inputs.alpha + inputs.dt_bias)
    beta = torch.sigmoid(inputs.beta)
    for first, count, start, slot, _ in spans.sequences.tolist():
        if count:
            settle(state[slot : slot + 1], held[slot : slot + 1])
            before = state[slot] if start else torch.zeros_like(state[slot])
            rows = (x[None, first : first + count] for x in (q, k, v, g, beta))
            outputs, after = chunked_gated_delta_rule(*rows, before[None])
            state[slot] = after[0]
            out[first : first + count] = outputs[0].flatten(1).to(out.dtype)

"""Launches every kernel of prompts once on meaningless numbers, for whoever compiles what is launched."""

from __future__ import annotations

import torch

from kernels.conv_heads import conv_heads
from kernels.delta_rule_chunks import ChunkTerms, DeltaRuleInputs, delta_rule_chunks
from kernels.delta_rule_walk import delta_rule_walk
from kernels.half_products import half_products
from kernels.paged_prefill import paged_prefill
from kernels.prompt_rows import add_norm, gate_up, gated_norm
from kernels.rope_store_kv import HeadShape
from kernels.spans import Spans

NUM_TOKENS, HEADS, D = 70, 4, 64


def launch_prompt_kernels() -> None:
    spans = Spans(*(torch.zeros(2, n, dtype=torch.int32) for n in (5, 2, 2)), torch.zeros(2, 8, dtype=torch.int32))
    wide, half = torch.zeros(NUM_TOKENS, 6 * D), torch.zeros(NUM_TOKENS, HEADS * D).half()
    shape = HeadShape(HEADS, 1, D, True)
    kv = torch.zeros(64, 1, D).bfloat16(), torch.zeros(64, 1, D).bfloat16()
    projected = torch.zeros(NUM_TOKENS, shape.row)
    paged_prefill(half.view(-1, HEADS, D).bfloat16(), projected, kv, None, spans, shape, 16, 24, 0.1, half)
    small, scales = torch.zeros(64, 1, D, dtype=torch.int8), torch.zeros(64, 1).half()
    paged_prefill(half.view(-1, HEADS, D), projected, (small, small), (scales, scales), spans, shape, 16, 0, 0.1, half)
    conv_heads(wide, torch.zeros(4, 6 * D), torch.zeros(2, 4, 6 * D), spans, 1, wide.view(-1, 6, D).half())
    gates = torch.zeros(NUM_TOKENS, HEADS)
    inputs = DeltaRuleInputs(wide.view(-1, 6, D).half(), gates, gates, gates[0], gates[0], 1)
    terms = ChunkTerms.empty(inputs, 2)
    delta_rule_chunks(inputs, spans, terms)
    delta_rule_walk(inputs, terms, spans, torch.zeros(2, HEADS, D, D), torch.zeros(2, HEADS + 1, 4, D), half)
    half_products(half, torch.zeros(96, HEADS * D).half())
    norm = torch.zeros(HEADS * D)
    add_norm(torch.zeros(half.shape), (half.float(),), None, norm, 1e-6, half, None)
    gated_norm(half, half.float(), norm[:D], 1e-6, half)
    gate_up(wide, None, False, wide[:, : 3 * D].half())

"""What a prompt's layers compute between their products: kernels on a GPU, plain torch on a CPU.

Knows tensors and pools; never layers' weights as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.conv_heads import conv_heads
from kernels.delta_rule_chunks import ChunkTerms, DeltaRuleInputs, delta_rule_chunks
from kernels.delta_rule_walk import delta_rule_walk
from kernels.paged_prefill import paged_prefill
from kernels.prompt_rows import add_norm, gate_up, gated_norm
from kernels.reference.conv_heads import conv_heads as plain_conv_heads
from kernels.reference.delta_rule_chunks import delta_rule as plain_delta_rule
from kernels.reference.paged_prefill import paged_prefill as plain_paged_prefill
from kernels.reference.prompt_rows import add_norm as plain_add_norm
from kernels.reference.prompt_rows import gate_up as plain_gate_up
from kernels.reference.prompt_rows import gated_norm as plain_gated_norm
from kernels.reference.rope_store_kv import write_rope_store_kv
from kernels.rope_store_kv import HeadShape, rope_store_kv
from kernels.spans import Spans

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class PromptOps:
    """Functions of the kernels' own signatures (kernels/*.py); the delta rule's two kernels as one.

    half:   what products are computed of; query: the type of queries, where keys are no integers
    """

    half: torch.dtype
    query: torch.dtype
    add_norm: Callable[[Tensor, tuple[Tensor, ...], tuple[Tensor, float] | None, Tensor, float, Tensor, Tensor | None,
                        float], None]
    gated_norm: Callable[[Tensor, Tensor, Tensor, float, Tensor], None]
    gate_up: Callable[[Tensor, Tensor | None, bool, Tensor, float], None]
    rope: Callable[[Tensor, HeadShape, Tensor, Tensor, Tensor, Pair | None, Tensor, Pair, Pair | None, float], None]
    attention: Callable[[Tensor, Tensor, Pair, Pair | None, Spans, HeadShape, int, int, float, Tensor], None]
    conv_heads: Callable[[Tensor, Tensor, Tensor, Spans, int, Tensor], None]
    delta_rule: Callable[[DeltaRuleInputs, Spans, Tensor, Tensor, Tensor], None]

    @classmethod
    def of(cls, device: torch.device) -> PromptOps:
        if device.type == "cpu":
            return cls(torch.float32, torch.float32, plain_add_norm, plain_gated_norm, plain_gate_up,
                       write_rope_store_kv, plain_paged_prefill, plain_conv_heads, plain_delta_rule)
        return cls(torch.float16, torch.bfloat16, add_norm, gated_norm, gate_up,
                   rope_store_kv, paged_prefill, conv_heads, _delta_rule)


def _delta_rule(inputs: DeltaRuleInputs, spans: Spans, state: Tensor, held: Tensor, out: Tensor) -> None:
    terms = ChunkTerms.empty(inputs, spans.chunks.shape[0])
    delta_rule_chunks(inputs, spans, terms)
    delta_rule_walk(inputs, terms, spans, state, held, out)

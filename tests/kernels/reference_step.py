"""A decode step composed of the references in plain float32: what `DecodeStep` must compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.quant_format import QuantActivation, QuantWeight
from kernels.reference.gated_activation import gated_activation
from kernels.reference.gated_delta_step import gated_delta_step
from kernels.reference.held_updates import settle
from kernels.reference.paged_decode import paged_decode
from kernels.reference.post_norm import post_norm
from kernels.reference.quant_gemv import dequantize_rows, quant_gemv, quantize_rows
from kernels.reference.quant_moe import moe_down, moe_gate_up, quant_route
from kernels.reference.quant_weight import dequantize
from kernels.reference.rope_store_kv import rope_store_kv
from sparkinfer.model.cuda.decode import DecodeInputs
from sparkinfer.model.cuda.weights import AttentionLayer, DecodeLayer, DecodeWeights, DeltaNetLayer, ExpertFFN


@dataclass(frozen=True, slots=True)
class Routing:
    """Experts that rows may not take, and what the routers said.

    banned:  [num_seqs, num_experts] bool for each layer that has experts, the first ones first; later layers ban none
    logits:  receives [num_seqs, num_experts] f32 of each such layer
    """

    banned: Sequence[Tensor] = ()
    logits: list[Tensor] = field(default_factory=list)

    def allowed(self, logits: Tensor, num_experts: int) -> Tensor:
        """The next layer's logits, those of banned experts -inf."""
        self.logits.append(logits[:, :num_experts])
        if len(self.logits) > len(self.banned):
            return logits
        banned = self.banned[len(self.logits) - 1]
        return torch.cat((logits[:, :num_experts].masked_fill(banned, -torch.inf), logits[:, num_experts:]), dim=1)


def reference_step(
    weights: DecodeWeights, inputs: DecodeInputs, last_residual: Tensor | None = None, routing: Routing | None = None
) -> Tensor:
    """[num_seqs, vocab_size] f32 logits; caches and states of `inputs` are changed as the step changes them.

    last_residual: [num_seqs, hidden_size] f32, written: the residual stream before the last norm
    """
    routing = Routing() if routing is None else routing
    residual = dequantize(weights.embedding)[inputs.input_ids].clone()
    weights.ends.enter(residual, weights.eps)
    for index, layer in enumerate(weights.layers):
        hidden = quantize_rows(residual, layer.attn_norm)
        if isinstance(layer.mixer, AttentionLayer):
            mixed = _attention(weights, layer.mixer, index, hidden, inputs)
        else:
            mixed = _delta_net(weights, layer.mixer, index, hidden, inputs)
        added = quantised_product(quantize_rows(mixed), layer.mixer.output)
        residual = _joined(weights, layer, 0, added, residual)
        hidden = quantize_rows(residual, layer.ffn_norm)
        if isinstance(layer.ffn, ExpertFFN):
            residual = _experts(layer.ffn, hidden, residual, weights.eps, routing)
        else:
            gate_up = quant_gemv(hidden, [layer.ffn.gate, layer.ffn.up], weights.eps)
            h = gated_activation(gate_up, layer.ffn.is_gelu)
            residual = _joined(weights, layer, 1, quantised_product(h, layer.ffn.down), residual)
    if last_residual is not None:
        last_residual.copy_(residual)
    logits = quant_gemv(quantize_rows(residual, weights.output_norm), [weights.output], weights.eps)
    weights.ends.leave(logits)
    return logits


def quantised_product(x: QuantActivation, weight: QuantWeight) -> Tensor:
    """A product that takes the integers, whatever the weight's format."""
    return dequantize_rows(x) @ dequantize(weight).T


def _joined(weights: DecodeWeights, layer: DecodeLayer, half: int, added: Tensor, residual: Tensor) -> Tensor:
    if layer.post_norms is None:
        return residual + added
    return post_norm(added, layer.post_norms[half], weights.post_eps, residual)


def _attention(
    weights: DecodeWeights, layer: AttentionLayer, index: int, hidden: QuantActivation, inputs: DecodeInputs
) -> Tensor:
    heads = weights.heads
    projected = quant_gemv(hidden, layer.qkv, weights.eps)
    if layer.bias is not None:
        projected = projected + layer.bias
    q, *new = rope_store_kv(projected, heads.num_q_heads, heads.num_kv_heads, heads.head_dim, heads.is_gated,
                            inputs.positions, weights.inv_freq if layer.inv_freq is None else layer.inv_freq,
                            layer.norms, weights.eps)
    kv, scales = inputs.kv[index], inputs.kv_scales[index]
    last = (inputs.context_lens - 1).long()
    blocks = inputs.block_tables.gather(1, last[:, None] // inputs.block_size).squeeze(1).long()
    rows = blocks * inputs.block_size + last % inputs.block_size
    for i in range(2):
        if scales is None:
            kv[i][rows] = new[i].to(kv[i].dtype)
        else:
            scale = (new[i].abs().amax(-1) / 127.0).half()
            scales[i][rows] = scale
            kv[i][rows] = torch.floor(new[i] / scale.float()[..., None] + 0.5).clamp(-127, 127).to(torch.int8)
    gate = None
    if heads.is_gated:
        width = heads.num_q_heads * heads.q_stride
        gate = projected[:, :width].reshape(-1, heads.num_q_heads, 2, heads.head_dim)[:, :, 1]
    return paged_decode(q, *kv, scales, inputs.block_tables, inputs.context_lens, inputs.block_size, layer.window,
                        gate, layer.scale)


def _delta_net(
    weights: DecodeWeights, layer: DeltaNetLayer, index: int, hidden: QuantActivation, inputs: DecodeInputs
) -> Tensor:
    projected = quant_gemv(hidden, layer.projections, weights.eps)
    small = layer.small
    settle(inputs.state[index], inputs.held[index])
    return gated_delta_step(projected, small.conv, small.a, small.dt_bias, small.norm, small.num_k_heads,
                            inputs.conv[index], inputs.state[index], inputs.state_slots, inputs.positions, weights.eps)


def _experts(ffn: ExpertFFN, hidden: QuantActivation, residual: Tensor, eps: float, routing: Routing) -> Tensor:
    num_experts = ffn.router.num_rows - (ffn.shared is not None)
    logits = routing.allowed(quant_gemv(hidden, [ffn.router], eps), num_experts)
    ids, scores = quant_route(logits, ffn.top_k, ffn.shared is not None)
    shared = None if ffn.shared is None else ffn.shared[:2]
    h = moe_gate_up(hidden, ids, ffn.gate, ffn.up, shared, num_experts, eps)
    return moe_down(h, ids, scores, ffn.down, None if ffn.shared is None else ffn.shared[2], residual)

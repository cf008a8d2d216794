"""Chunks of prompts on the decode kernels' weights: one dequantised matrix at a time, then torch's products.

Keys, values, states and convolution inputs land where and how the decode step reads them, so that the two may follow
each other at any token. Host numbers come with the batch: nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.quant_format import QuantFormat, QuantWeight
from kernels.reference.gated_delta_rule import l2_normalize
from kernels.reference.moe import route
from kernels.reference.paged_attention import gather_rows
from kernels.reference.rms_norm import rms_norm
from kernels.reference.rope_store_kv import rope_store_kv
from kernels.reference.store_kv import store_kv
from sparkinfer.model.cuda import dequantize
from sparkinfer.model.cuda.output_head import OutputHead
from sparkinfer.model.cuda.pools import DecodePools
from sparkinfer.model.cuda.recurrence import Recurrence
from sparkinfer.model.cuda.weights import AttentionLayer, DecodeLayer, DecodeWeights, DeltaNetLayer, DenseFFN, ExpertFFN

F16_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + num_tokens) of one sequence, and the rows of the step that they are."""

    rows: slice
    slot: int
    start: int
    num_tokens: int
    block_table: Tensor  # [max_blocks] int32 on the device

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class PrefillBatch:
    """Chunks laid end to end; input_ids, positions, slot_mapping: [num_tokens] int64."""

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    chunks: Sequence[Chunk]


class Prefill:
    """Runs chunks of any lengths together.

    Products of f16 (experts: bf16) numbers, f32 on a CPU; sums, norms and the residual stream in f32.
    """

    def __init__(self, weights: DecodeWeights, pools: DecodePools, device: torch.device) -> None:
        self.head = OutputHead(weights)
        self._weights = weights
        self._pools = pools
        self._device = device
        is_cpu = device.type == "cpu"
        self._dtype = torch.float32 if is_cpu else torch.float16
        self._recurrence = Recurrence.of(device)
        self._grouped_dtype = torch.float32 if is_cpu else torch.bfloat16  # the grouped product's one type

    def run(self, batch: PrefillBatch) -> Tensor:
        """Store keys, values and states of the batch's tokens.

        returns [num_tokens, hidden_size] f32, the residual stream of each
        """
        weights = self._weights
        for chunk in batch.chunks:
            if chunk.start == 0:
                self._pools.reset(chunk.slot)
        x = dequantize.rows(weights.embedding, batch.input_ids)
        weights.ends.enter(x, weights.eps)
        for index, layer in enumerate(weights.layers):
            hidden = rms_norm(x, layer.attn_norm, weights.eps)
            if isinstance(layer.mixer, AttentionLayer):
                added = self._attention(layer.mixer, index, hidden, batch)
            else:
                added = self._delta_net(layer.mixer, index, hidden, batch)
            x = x + self._post_normed(added, layer, 0)
            hidden = rms_norm(x, layer.ffn_norm, weights.eps)
            if isinstance(layer.ffn, ExpertFFN):
                x = x + self._experts(layer.ffn, hidden)
            else:
                x = x + self._post_normed(self._dense(layer.ffn, hidden), layer, 1)
        return x

    def _post_normed(self, x: Tensor, layer: DecodeLayer, half: int) -> Tensor:
        return x if layer.post_norms is None else rms_norm(x, layer.post_norms[half], self._weights.post_eps)

    def _matmul(self, x: Tensor, weight: QuantWeight) -> Tensor:
        """[num_tokens, num_cols] -> [num_tokens, num_rows] f32."""
        if weight.format == QuantFormat.F32:
            return x @ weight.quants.T
        matrix = dequantize.matrix(weight, self._dtype)
        if matrix.dtype == torch.float32:
            return x @ matrix.T
        return torch.mm(x.clamp(-F16_MAX, F16_MAX).half(), matrix.T, out_dtype=torch.float32)

    def _project(self, x: Tensor, weights: Sequence[QuantWeight]) -> Tensor:
        return torch.cat([self._matmul(x, weight) for weight in weights], dim=1)

    def _attention(self, layer: AttentionLayer, index: int, hidden: Tensor, batch: PrefillBatch) -> Tensor:
        heads = self._weights.heads
        projected = self._project(hidden, layer.qkv)
        if layer.bias is not None:
            projected += layer.bias
        q, k, v = rope_store_kv(
            projected, heads.num_q_heads, heads.num_kv_heads, heads.head_dim, heads.is_gated, batch.positions,
            self._weights.inv_freq if layer.inv_freq is None else layer.inv_freq, layer.norms, self._weights.eps,
        )
        kv, scales = self._pools.kv[index], self._pools.kv_scales[index]
        assert kv is not None
        store_kv(k, v, *kv, batch.slot_mapping, scales)
        out = torch.empty_like(q)
        for chunk in batch.chunks:
            out[chunk.rows] = self._attend(q[chunk.rows], index, chunk, layer)
        if heads.is_gated:
            width = heads.num_q_heads * heads.q_stride
            gate = torch.unflatten(projected[:, :width], 1, (heads.num_q_heads, 2, heads.head_dim))[:, :, 1]
            out = out * torch.sigmoid(gate)
        return self._matmul(out.flatten(1), layer.output)

    def _attend(self, q: Tensor, index: int, chunk: Chunk, layer: AttentionLayer) -> Tensor:
        """q: [num_tokens, num_q_heads, head_dim] f32 -> same; keys and values are in the pool already."""
        kv, scales, block_size = self._pools.kv[index], self._pools.kv_scales[index], self._pools.block_size
        assert kv is not None
        blocks = chunk.block_table[: -(-chunk.end // block_size)].long()[:, None] * block_size
        key_rows = (blocks + torch.arange(block_size, device=self._device)).flatten()[: chunk.end]
        repeats = q.shape[1] // kv[0].shape[1]
        keys, values = (
            gather_rows(cache, scales and scales[i], key_rows, self._dtype).repeat_interleave(repeats, dim=1)
            for i, cache in enumerate(kv)
        )
        mask = None
        is_cut = 0 < layer.window < chunk.end
        if chunk.start or is_cut:
            distance = torch.arange(chunk.start, chunk.end, device=self._device)[:, None]
            distance = distance - torch.arange(chunk.end, device=self._device)
            mask = (distance >= 0) & (distance < layer.window) if is_cut else distance >= 0
        query, keys, values = (x.to(self._dtype).transpose(0, 1)[None] for x in (q, keys, values))
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=mask is None,
                                             scale=layer.scale)
        return out[0].transpose(0, 1).float()

    def _delta_net(self, layer: DeltaNetLayer, index: int, hidden: Tensor, batch: PrefillBatch) -> Tensor:
        small, eps = layer.small, self._weights.eps
        projected = self._project(hidden, layer.projections)
        ring, state = self._pools.conv[index], self._pools.state[index]
        assert ring is not None
        assert state is not None
        heads, head_dim = state.shape[1], state.shape[2]
        channels, width = small.conv.shape[0], heads * head_dim
        mixed, z, alpha, beta = torch.split(projected, [channels, width, heads, heads], dim=1)
        g = small.a * F.softplus(alpha + small.dt_bias)
        beta = torch.sigmoid(beta)
        out = torch.empty(hidden.shape[0], heads, head_dim, device=self._device)
        for chunk in batch.chunks:
            convolved = self._recurrence.convolve(mixed[chunk.rows], small.conv, ring[chunk.slot], chunk.start)
            parts = torch.unflatten(convolved, 1, (-1, head_dim))
            q, k, v = torch.split(parts, [small.num_k_heads, small.num_k_heads, heads], dim=1)
            repeats = (1, heads // small.num_k_heads, 1)
            q, k = l2_normalize(q).repeat(repeats) * head_dim**-0.5, l2_normalize(k).repeat(repeats)
            out[chunk.rows] = self._recurrence.delta_rule(q, k, v, g[chunk.rows], beta[chunk.rows], state[chunk.slot])
        out = rms_norm(out, small.norm, eps).flatten(1) * F.silu(z)
        return self._matmul(out, layer.output)

    def _dense(self, ffn: DenseFFN, hidden: Tensor) -> Tensor:
        if ffn.is_gelu:
            gate, up = self._matmul(hidden, ffn.gate), self._matmul(hidden, ffn.up)
            return self._matmul(F.gelu(gate, approximate="tanh") * up, ffn.down)
        return self._swiglu(hidden, ffn.gate, ffn.up, ffn.down)

    def _swiglu(self, x: Tensor, gate: QuantWeight, up: QuantWeight, down: QuantWeight) -> Tensor:
        return self._matmul(F.silu(self._matmul(x, gate)) * self._matmul(x, up), down)

    def _experts(self, ffn: ExpertFFN, hidden: Tensor) -> Tensor:
        num_experts = ffn.router.num_rows - (ffn.shared is not None)
        logits = self._matmul(hidden, ffn.router)
        weights, expert_ids = route(logits[:, :num_experts], ffn.top_k)
        flat = expert_ids.flatten()
        order = flat.argsort(stable=True)
        counts = torch.zeros(num_experts, dtype=torch.int32, device=self._device)
        counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
        ends = counts.cumsum(0, dtype=torch.int32)
        rows = hidden.index_select(0, order // ffn.top_k).to(self._grouped_dtype)
        gate, up = (self._grouped(rows, weight, ends).float() for weight in (ffn.gate, ffn.up))
        grouped = self._grouped((F.silu(gate) * up).to(self._grouped_dtype), ffn.down, ends).float()
        places = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=self._device))
        routed = grouped.index_select(0, places).view(-1, ffn.top_k, grouped.shape[1])
        out = torch.bmm(weights[:, None, :], routed)[:, 0]
        if ffn.shared is not None:
            out = out + torch.sigmoid(logits[:, num_experts:]) * self._swiglu(hidden, *ffn.shared)
        return out

    def _grouped(self, rows: Tensor, weight: QuantWeight, ends: Tensor) -> Tensor:
        """Rows sorted by expert, times that expert's matrix; ends: [num_experts] int32, where its rows end."""
        matrices = dequantize.matrix(weight, self._grouped_dtype).view(ends.shape[0], -1, weight.num_cols)
        product: Tensor = F.grouped_mm(rows, matrices.transpose(1, 2), offs=ends)
        return product

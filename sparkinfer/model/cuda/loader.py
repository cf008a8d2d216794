"""GGUF tensors -> DecodeWeights, for the architectures that coverage.py admits.

Knows tensor names and which matrices share a launch; never steps or pools.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.gated_delta_step import DeltaNetWeights
from kernels.quant_format import QuantWeight
from kernels.repack import concat_rows, select_rows
from kernels.rope_store_kv import HeadShape
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.cuda.feed_forward import dense_ffn, expert_ffn
from sparkinfer.model.cuda.rotation import Rotation, rotation_of, row_order
from sparkinfer.model.cuda.tensor_reader import TensorReader, joined, plain_weight
from sparkinfer.model.cuda.weights import (
    AttentionLayer,
    DecodeLayer,
    DecodeWeights,
    DeltaNetLayer,
    DenseFFN,
    Ends,
    ExpertFFN,
)
from sparkinfer.model.loader import Progress
from sparkinfer.model.muse_glimmer import POST_NORM_EPS as MUSE_POST_NORM_EPS

MAX_JOINED = 3  # matrices in one launch


def load_decode_weights(
    gguf: GGUFFile, hparams: HParams, device: torch.device, progress: Progress
) -> DecodeWeights:
    """Read, copy and repack tensor by tensor; the checkpoint must be covered (`why_not_covered`).

    progress(bytes_done, bytes_total) is called after every tensor.
    """
    reader = TensorReader(gguf, device, progress)
    embedding = reader.weight("token_embd.weight")
    layers = tuple(_LayerLoader(reader, hparams, layer).load() for layer in range(hparams.num_layers))
    output = embedding if hparams.has_tied_embeddings else reader.weight("output.weight")
    inv_freq = rotation_of(hparams, "attention", device).inv_freq
    if reader.has("rope_freqs.weight"):
        inv_freq = inv_freq / reader.values("rope_freqs.weight")
    is_gated = "gated_delta_net" in hparams.layer_types or reader.has("blk.0.attn_gate.weight")
    heads = HeadShape(hparams.num_q_heads, hparams.num_kv_heads, hparams.head_dim, is_gated)
    output_norm, eps = reader.values("output_norm.weight"), hparams.rms_norm_eps
    post_eps = MUSE_POST_NORM_EPS if hparams.architecture == "muse-glimmer" else eps
    return DecodeWeights(embedding, layers, output_norm, output, heads, inv_freq, eps, post_eps, _ends(hparams))


def _ends(hparams: HParams) -> Ends:
    return Ends(
        math.sqrt(hparams.hidden_size) if hparams.architecture == "gemma3" else 1.0,
        hparams.architecture == "muse-glimmer",
        hparams.logit_scale,
        hparams.final_logit_softcapping,
    )


class _LayerLoader:
    """One layer's tensors under their short names."""

    def __init__(self, reader: TensorReader, hparams: HParams, layer: int) -> None:
        self._reader = reader
        self._hparams = hparams
        self._layer = layer

    def load(self) -> DecodeLayer:
        is_recurrent = self._hparams.layer_types[self._layer] == "gated_delta_net"
        attn_norm = self._values("attn_norm.weight")
        mixer = self._delta_net() if is_recurrent else self._attention()
        second = "ffn_norm.weight" if self._has("ffn_norm.weight") else "post_attention_norm.weight"
        ffn_norm, post_norms = self._values(second), None
        if self._has("post_ffw_norm.weight"):
            post_norms = (self._values("post_attention_norm.weight"), self._values("post_ffw_norm.weight"))
        ffn = self._experts(ffn_norm) if self._hparams.num_experts else self._dense(ffn_norm)
        return DecodeLayer(attn_norm, mixer, ffn_norm, ffn, post_norms)

    def _name(self, short: str) -> str:
        return f"blk.{self._layer}.{short}"

    def _has(self, short: str) -> bool:
        return self._reader.has(self._name(short))

    def _values(self, short: str) -> Tensor:
        return self._reader.values(self._name(short))

    def _weight(self, short: str, row_order: Tensor | None = None) -> QuantWeight:
        return self._reader.weight(self._name(short), row_order)

    def _any_weight(self, short: str) -> QuantWeight:
        """A small matrix: f32 where the kernels cannot read its type."""
        if self._reader.is_known(self._name(short)):
            return self._weight(short)
        return self._as_f32(short)

    def _attention(self) -> AttentionLayer:
        hparams = self._hparams
        order = row_order(hparams, hparams.num_q_heads)
        q = self._gated_queries(order) if self._has("attn_gate.weight") else self._weight("attn_q.weight", order)
        k = self._weight("attn_k.weight", row_order(hparams, hparams.num_kv_heads))
        qkv = joined([q, k, self._weight("attn_v.weight")])
        rotation = rotation_of(hparams, hparams.layer_types[self._layer], qkv[0].quants.device)
        norms = bias = None
        if self._has("attn_q_norm.weight"):
            norms = (self._head_norm("attn_q_norm.weight", rotation), self._head_norm("attn_k_norm.weight", rotation))
        if self._has("attn_q.bias"):
            bias = torch.cat([self._values(f"attn_{name}.bias") for name in "qkv"])
        window = hparams.sliding_window if hparams.layer_types[self._layer] == "sliding_attention" else 0
        inv_freq = None if self._reader.has("rope_freqs.weight") else rotation.inv_freq
        output = self._weight("attn_output.weight")
        return AttentionLayer(qkv, norms, output, bias, inv_freq, window, rotation.scale)

    def _gated_queries(self, order: Tensor | None) -> QuantWeight:
        """Each head's query rows, then the rows of its gate, which the file has in a matrix of its own."""
        q, gate = self._pair("attn_q.weight", "attn_gate.weight")
        rows = torch.arange(2 * q.num_rows)
        if order is not None:
            rows[: q.num_rows] = order
        rows = rows.view(2, self._hparams.num_q_heads, -1).transpose(0, 1).flatten()
        return select_rows(concat_rows([q, gate]), rows.to(q.quants.device))

    def _head_norm(self, short: str, rotation: Rotation) -> Tensor:
        weight, order = self._values(short), row_order(self._hparams, 1)
        if order is not None:
            weight = weight[order.to(weight.device)]
        return weight if rotation.norm_factor is None else weight * rotation.norm_factor

    def _delta_net(self) -> DeltaNetLayer:
        parts = [self._weight("attn_qkv.weight"), self._weight("attn_gate.weight")]
        small = [self._any_weight("ssm_alpha.weight"), self._any_weight("ssm_beta.weight")]
        projections = joined([*parts, *small])
        if len(projections) > MAX_JOINED:
            projections = joined([*parts, *(self._as_f32(name) for name in ("ssm_alpha.weight", "ssm_beta.weight"))])
        weights = DeltaNetWeights(
            conv=self._values("ssm_conv1d.weight").T.contiguous(), a=self._values("ssm_a").flatten(),
            dt_bias=self._values("ssm_dt.bias"), norm=self._values("ssm_norm.weight"),
            num_k_heads=self._hparams.ssm_group_count,
        )
        return DeltaNetLayer(projections, weights, self._weight("ssm_out.weight"))

    def _as_f32(self, short: str) -> QuantWeight:
        return plain_weight(self._values(short))

    def _dense(self, norm: Tensor) -> DenseFFN:
        is_gelu = self._hparams.architecture == "gemma3"
        pair = self._pair("ffn_gate.weight", "ffn_up.weight")
        return dense_ffn((*pair, self._weight("ffn_down.weight")), norm, is_gelu)

    def _pair(self, gate: str, up: str) -> tuple[QuantWeight, QuantWeight]:
        """Two matrices of one format; where the file has two, both become plain numbers."""
        if self._reader.has_one_type(self._name(gate), self._name(up)):
            return self._weight(gate), self._weight(up)
        first, second = self._reader.plain([self._name(gate), self._name(up)])
        return first, second

    def _experts(self, norm: Tensor) -> ExpertFFN:
        hparams = self._hparams
        router = self._values("ffn_gate_inp.weight")
        routed = (*self._expert_halves(), self._weight("ffn_down_exps.weight"))
        shared = None
        if hparams.shared_expert_ffn_size:
            router = torch.cat((router, self._values("ffn_gate_inp_shexp.weight").reshape(1, -1)))
            pair = self._pair("ffn_gate_shexp.weight", "ffn_up_shexp.weight")
            shared = (*pair, self._weight("ffn_down_shexp.weight"))
        return expert_ffn(router, routed, shared, hparams.num_experts_used, norm)

    def _expert_halves(self) -> tuple[QuantWeight, QuantWeight]:
        if not self._has("ffn_gate_up_exps.weight"):
            return self._pair("ffn_gate_exps.weight", "ffn_up_exps.weight")
        name = self._name("ffn_gate_up_exps.weight")
        both = self._reader.weight(name)
        index = torch.arange(both.num_rows, device=both.quants.device).view(self._hparams.num_experts, 2, -1)
        gate, up = (select_rows(both, half.flatten()) for half in index.unbind(1))
        return gate, up

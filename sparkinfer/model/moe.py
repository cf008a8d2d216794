"""The mixture-of-experts feed-forward layer, with or without a shared expert.

Knows its router and experts; never its place in the model.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from kernels.reference.activation import activate_and_mul
from kernels.reference.moe import moe, route
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.linear import Linear, fuse
from sparkinfer.model.module import Module, unloaded


class Experts(Module):
    """One matrix per expert.

    weight: [num_experts, out_features, in_features] f32
    """

    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        self.weight = unloaded(num_experts, out_features, in_features)


class SharedGate(Module):
    """A vector whose product with a token gates the shared expert.

    weight: [hidden_size] f32
    """

    def __init__(self, hidden_size: int) -> None:
        self.weight = unloaded(hidden_size)


class MixtureOfExperts(Module):
    """Sum over the top k experts of weight * SwiGLU_e(x), plus sigmoid(gate . x) * SwiGLU_shared(x) if there is one."""

    def __init__(self, hparams: HParams, layer: int, tensor_names: Collection[str]) -> None:
        hidden, ffn_size, num_experts = hparams.hidden_size, hparams.expert_ffn_size, hparams.num_experts
        self.top_k = hparams.num_experts_used
        self.has_shared_expert = hparams.shared_expert_ffn_size > 0
        self.is_fused = f"blk.{layer}.ffn_gate_up_exps.weight" in tensor_names
        self.ffn_gate_inp = Linear(hidden, num_experts)
        if self.is_fused:
            self.ffn_gate_up_exps = Experts(num_experts, hidden, 2 * ffn_size)
        else:
            self.ffn_gate_exps = Experts(num_experts, hidden, ffn_size)
            self.ffn_up_exps = Experts(num_experts, hidden, ffn_size)
        self.ffn_down_exps = Experts(num_experts, ffn_size, hidden)
        if self.has_shared_expert:
            self.ffn_gate_inp_shexp = SharedGate(hidden)
            self.ffn_gate_shexp = Linear(hidden, hparams.shared_expert_ffn_size)
            self.ffn_up_shexp = Linear(hidden, hparams.shared_expert_ffn_size)
            self.ffn_down_shexp = Linear(hparams.shared_expert_ffn_size, hidden)

    def prepare(self) -> None:
        """Fuse gate and up, of the experts and of the shared expert."""
        if self.is_fused:
            self._gate_up_exps = self.ffn_gate_up_exps.weight
        else:
            self._gate_up_exps = torch.cat((self.ffn_gate_exps.weight, self.ffn_up_exps.weight), dim=1)
            self.ffn_gate_exps.weight, self.ffn_up_exps.weight = self._gate_up_exps.chunk(2, dim=1)
        if self.has_shared_expert:
            self._gate_up_shexp = fuse(self.ffn_gate_shexp, self.ffn_up_shexp)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, hidden_size] -> [num_tokens, hidden_size]."""
        weights, expert_ids = route(self.ffn_gate_inp(x), self.top_k)
        out = moe(x, self._gate_up_exps, self.ffn_down_exps.weight, weights, expert_ids, self.numerics)
        if self.has_shared_expert:
            numerics = self.numerics
            gate = numerics.sigmoid(numerics.row_dot(x, self.ffn_gate_inp_shexp.weight))[:, None]
            out = out + gate * self.ffn_down_shexp(activate_and_mul(self._gate_up_shexp(x), numerics.silu))
        return out

"""The recurrent layer of hybrid models: convolution, gated delta rule, gated norm.

Knows its projections and layer index; never which sequence a state slot belongs to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.causal_conv1d import causal_conv1d
from kernels.reference.gated_delta_rule import l2_normalize
from kernels.reference.rms_norm import gated_rms_norm
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.linear import Linear, fuse
from sparkinfer.model.module import Module, unloaded
from sparkinfer.model.norm import RMSNorm
from sparkinfer.model.step import Step


class DepthwiseConv(Module):
    """Taps of the causal convolution.

    weight: [channels, kernel] f32
    """

    def __init__(self, channels: int, kernel: int) -> None:
        self.weight = unloaded(channels, kernel)


class TimeStep(Module):
    """Offset of the decay's softplus.

    bias: [num_value_heads] f32
    """

    def __init__(self, num_value_heads: int) -> None:
        self.bias = unloaded(num_value_heads)


class GatedDeltaNet(Module):
    """ssm_out(norm(delta_rule(conv(attn_qkv x))) * silu(attn_gate x)).

    Value head h reads key head h mod num_key_heads: GGUF files store value heads in that tiled order.

    ssm_a: [num_value_heads] f32, the negative decay rate
    """

    def __init__(self, hparams: HParams, layer: int) -> None:
        self.layer, self._head_dim = layer, hparams.ssm_state_size
        self._num_key_heads, self._num_value_heads = hparams.ssm_group_count, hparams.ssm_time_step_rank
        self.eps = hparams.rms_norm_eps
        hidden, value_size = hparams.hidden_size, self._num_value_heads * self._head_dim
        self.attn_qkv = Linear(hidden, hparams.ssm_conv_channels)
        self.attn_gate = Linear(hidden, value_size)
        self.ssm_conv1d = DepthwiseConv(hparams.ssm_conv_channels, hparams.ssm_conv_kernel)
        self.ssm_alpha = Linear(hidden, self._num_value_heads)
        self.ssm_beta = Linear(hidden, self._num_value_heads)
        self.ssm_a = unloaded(self._num_value_heads)
        self.ssm_dt = TimeStep(self._num_value_heads)
        self.ssm_norm = RMSNorm(self._head_dim, hparams.rms_norm_eps)
        self.ssm_out = Linear(value_size, hidden)

    def prepare(self) -> None:
        """Fuse the four input projections."""
        self._projections = fuse(self.attn_qkv, self.attn_gate, self.ssm_alpha, self.ssm_beta)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """x: [num_tokens, hidden_size], normed -> [num_tokens, hidden_size]."""
        assert step.conv is not None
        heads, value_size = self._num_value_heads, self._num_value_heads * self._head_dim
        channels = self.ssm_conv1d.weight.shape[0]
        qkv, gate, alpha, beta = torch.split(
            self._projections(x), [channels, value_size, heads, heads], dim=1
        )
        conv_state, state = step.state_pool.layer(self.layer)
        slots = step.batch.state_slots
        numerics = self.numerics
        q, k, v = self._heads(causal_conv1d(qkv, self.ssm_conv1d.weight, conv_state, slots, step.conv, numerics.silu))
        g = self.ssm_a * numerics.softplus(alpha + self.ssm_dt.bias)
        out = numerics.gated_delta_rule(q, k, v, g, numerics.sigmoid(beta), state, slots, step.batch.query_lens)
        out = gated_rms_norm(out, gate.view(out.shape), self.ssm_norm.weight, self.eps, numerics.silu)
        return self.ssm_out(out.flatten(1))

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows q | k | v -> three times [num_tokens, num_value_heads, head_dim]; q and k normalised, q scaled."""
        num_key_heads = self._num_key_heads
        heads = qkv.view(qkv.shape[0], -1, self._head_dim)
        q, k = l2_normalize(heads[:, : 2 * num_key_heads]).chunk(2, dim=1)
        repeats = (1, self._num_value_heads // num_key_heads, 1)
        return (q * self._head_dim**-0.5).repeat(repeats), k.repeat(repeats), heads[:, 2 * num_key_heads :]

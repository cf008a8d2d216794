"""Writes a gated delta net's instructions. Knows the layer; never its place in the model."""

from __future__ import annotations

import numpy as np

from kernels.cpu import program as words
from kernels.cpu.delta_rule import conv_kernel, delta_kernel, gated_norm_kernel, gates_kernel
from sparkinfer.model.cpu.context import Writing
from sparkinfer.model.cpu.program import Buffer, Pending
from sparkinfer.model.gated_delta_net import GatedDeltaNet
from sparkinfer.model.norm import RMSNorm

FLOAT = 4


def write_delta_net(writing: Writing, net: GatedDeltaNet, norm: RMSNorm, out: Buffer) -> None:
    """Add gated_delta_net(norm(residual stream)) to `out`."""
    program, hparams, layer = writing.program, writing.hparams, net.layer
    key_heads, heads, head_dim = hparams.ssm_group_count, hparams.ssm_time_step_rank, hparams.ssm_state_size
    channels, value_size = hparams.ssm_conv_channels, heads * head_dim
    inputs = writing.matrices(net.attn_qkv, net.attn_gate, net.ssm_alpha, net.ssm_beta)
    output = writing.matrices(net.ssm_out)
    projected = program.floats("projected", channels + value_size + 2 * heads)
    program.matmul(inputs, writing.normed(norm, inputs), projected)
    taps = program.keep(np.ascontiguousarray(net.ssm_conv1d.weight.numpy().T))
    program.write(
        conv_kernel, words.NUM_SPANS, channels // 16, projected, channels, taps, Pending("conv", layer),
        Pending("conv_bytes", layer), grain=4,
    )
    gates, alpha_at = program.floats("gates", 2 * heads), FLOAT * (channels + value_size)
    program.write(
        gates_kernel, words.NUM_ROWS, 1, projected, key_heads, heads, head_dim, alpha_at, alpha_at + FLOAT * heads,
        program.keep(net.ssm_a), program.keep(net.ssm_dt.bias), gates.address,
    )
    values = program.floats("values", value_size)
    program.write(
        delta_kernel, words.NUM_SPANS, heads * (head_dim // 16), projected, key_heads, heads, head_dim, gates.address,
        values, Pending("state", layer), Pending("state_bytes", layer),
    )
    found = program.activations("values", value_size, output, floats=values)
    gate = Buffer(projected.address + FLOAT * channels, projected.row_bytes)
    program.write(
        gated_norm_kernel, words.NUM_ROWS, 1, values, heads, head_dim, gate, program.keep(net.ssm_norm.weight),
        float(hparams.rms_norm_eps), found.records,
    )
    program.matmul(output, found, out, adds=True)

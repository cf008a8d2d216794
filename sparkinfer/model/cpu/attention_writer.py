"""Writes an attention layer's instructions. Knows its variants; never its place in the model."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu import program as words
from kernels.cpu.attention import finish_kernel
from kernels.cpu.rope_store import ROPE_HALVES, ROPE_INTERLEAVED, ROPE_NONE, rope_store_kernel
from sparkinfer.model.attention import Attention
from sparkinfer.model.cpu.context import Writing
from sparkinfer.model.cpu.program import Buffer, Pending
from sparkinfer.model.norm import RMSNorm

FLOAT = 4


def write_attention(writing: Writing, attention: Attention, norm: RMSNorm, out: Buffer, adds: bool) -> None:
    """attention(norm(residual stream)) to `out`, or added to it."""
    program, hparams = writing.program, writing.hparams
    q_size, kv_size = hparams.num_q_heads * hparams.head_dim, hparams.num_kv_heads * hparams.head_dim
    gate_kind = attention.variant.gate
    modules = [attention.attn_q, attention.attn_k, attention.attn_v]
    if gate_kind == "separate":
        modules.append(attention.attn_gate)
    inputs, output = writing.matrices(*modules), writing.matrices(attention.attn_output)
    k_at = 2 * q_size if gate_kind == "in_query" else q_size
    width = k_at + 2 * kv_size + (q_size if gate_kind == "separate" else 0)
    heads = program.floats("heads", width)
    program.matmul(inputs, writing.normed(norm, inputs), heads, bias=_bias(attention))
    q_head_bytes = FLOAT * hparams.head_dim * (2 if gate_kind == "in_query" else 1)
    _write_rope_and_store(writing, attention, heads, FLOAT * k_at, q_head_bytes)
    attended = program.floats("attended", q_size)
    _write_attend(writing, attention, heads, q_head_bytes, attended)
    found = program.activations("attended", q_size, output, floats=attended)
    gate, gate_head_bytes = None, 0
    if gate_kind == "in_query":
        gate, gate_head_bytes = Buffer(heads.address + FLOAT * hparams.head_dim, heads.row_bytes), q_head_bytes
    elif gate_kind == "separate":
        gate = Buffer(heads.address + FLOAT * (k_at + 2 * kv_size), heads.row_bytes)
        gate_head_bytes = FLOAT * hparams.head_dim
    is_sliding = attention.layer_type == "sliding_attention"
    program.write(
        finish_kernel, words.NUM_ROWS, 1, attended, hparams.num_q_heads, hparams.head_dim, found.records, gate,
        gate_head_bytes, words.SLIDING_PARTS if is_sliding else words.PARTS,
    )
    program.matmul(output, found, out, adds=adds)


def _bias(attention: Attention) -> Tensor | None:
    if not attention.variant.has_bias:
        return None
    biases = [linear.bias for linear in (attention.attn_q, attention.attn_k, attention.attn_v)]
    return torch.cat([bias for bias in biases if bias is not None])


def _write_rope_and_store(
    writing: Writing, attention: Attention, heads: Buffer, k_at: int, q_head_bytes: int
) -> None:
    program, hparams, layer, rope = writing.program, writing.hparams, attention.layer, attention.rope
    has_norms = attention.variant.has_qk_norm
    kind, half = ROPE_NONE, 0
    if rope is not None:
        kind, half = ROPE_INTERLEAVED if hparams.rope.is_interleaved else ROPE_HALVES, rope.inv_freq.numel()
    is_sliding = attention.layer_type == "sliding_attention"
    program.write(
        rope_store_kernel, words.NUM_ROWS, 1, heads, 0, k_at, k_at + FLOAT * hparams.num_kv_heads * hparams.head_dim,
        q_head_bytes, hparams.num_q_heads, hparams.num_kv_heads, hparams.head_dim,
        program.keep(attention.attn_q_norm.weight) if has_norms else 0,
        program.keep(attention.attn_k_norm.weight) if has_norms else 0,
        float(hparams.rms_norm_eps), words.SLIDING_COS if is_sliding else words.COS, half, kind,
        *(Pending(field, layer) for field in ("k", "v", "k_scale", "v_scale", "kv_kind")), float(attention.scale),
    )


def _write_attend(
    writing: Writing, attention: Attention, heads: Buffer, q_head_bytes: int, attended: Buffer
) -> None:
    hparams, layer = writing.hparams, attention.layer
    is_sliding = attention.layer_type == "sliding_attention"
    writing.program.write(
        Pending("attend", layer), words.NUM_SLIDING_WORK if is_sliding else words.NUM_WORK, hparams.num_kv_heads, heads,
        q_head_bytes, attended, hparams.num_kv_heads, hparams.num_q_heads // hparams.num_kv_heads, hparams.head_dim,
        *(Pending(field, layer) for field in ("k", "v", "k_scale", "v_scale")),
        hparams.sliding_window if is_sliding else 0, words.SLIDING_WORK if is_sliding else words.WORK,
    )

"""Writes a mixture of experts' instructions. Knows router and experts; never the layer's place in the model."""

from __future__ import annotations

from kernels.cpu import program as words
from kernels.cpu.moe import combine_kernel, group_kernel, route_kernel, scatter_kernel
from kernels.cpu.rows import SILU
from sparkinfer.model.cpu.context import Writing
from sparkinfer.model.cpu.program import Activations, Buffer
from sparkinfer.model.cpu.weights import PackedMatrix
from sparkinfer.model.moe import MixtureOfExperts
from sparkinfer.model.norm import RMSNorm


def write_experts(writing: Writing, moe: MixtureOfExperts, norm: RMSNorm, out: Buffer) -> None:
    """Add mixture_of_experts(norm(residual stream)) to `out`."""
    program, hparams = writing.program, writing.hparams
    num_experts, top_k, hidden = hparams.num_experts, hparams.num_experts_used, hparams.hidden_size
    router = writing.matrices(moe.ffn_gate_inp)
    up = [moe.ffn_gate_up_exps] if moe.is_fused else [moe.ffn_gate_exps, moe.ffn_up_exps]
    gate_up, down = writing.matrices(*up), writing.matrices(moe.ffn_down_exps)
    shared = writing.matrices(moe.ffn_gate_shexp, moe.ffn_up_shexp) if moe.has_shared_expert else []
    x = writing.normed(norm, [*router, *gate_up, *shared], also_floats=moe.has_shared_expert)
    logits = program.floats("router", num_experts)
    program.matmul(router, x, logits)
    weights, ids = program.floats("expert weights", top_k), program.floats("expert ids", 2 * top_k)
    places, starts = program.floats("places", 2 * top_k), program.floats("starts", 2 * num_experts + 2)
    active = program.floats("active experts", 2 * num_experts)
    program.write(
        route_kernel, words.NUM_ROWS, 1, logits, num_experts, top_k, weights.address, ids.address,
    )
    program.write(group_kernel, words.ONE, 1, ids.address, top_k, num_experts, starts.address, places.address,
                  active.address)
    pairs = _scattered(writing, x, Activations(
        program.floats("pair floats", hidden, top_k) if any(not m.is_quantised for m in gate_up) else None,
        program.records("pair records", hidden, top_k) if any(m.is_quantised for m in gate_up) else None,
    ), places.address)
    both = program.floats("experts", 2 * hparams.expert_ffn_size, top_k)
    program.matmul(gate_up, pairs, both, experts=(starts.address, active.address))
    activated = writing.activated(both, hparams.expert_ffn_size, SILU, down, top_k)
    results = program.floats("expert results", hidden, top_k)
    program.matmul(down, activated, results, experts=(starts.address, active.address))
    shared_out = _write_shared(writing, moe, shared, x) if shared else None
    gate_weight = program.keep(moe.ffn_gate_inp_shexp.weight) if shared else 0
    program.write(
        combine_kernel, words.NUM_ROWS, 1, results, top_k, weights.address, places.address, out, hidden, shared_out,
        x.floats, gate_weight,
    )


def _scattered(writing: Writing, x: Activations, target: Activations, places: int) -> Activations:
    for source, out in ((x.floats, target.floats), (x.records, target.records)):
        if out is not None:
            assert source is not None
            writing.program.write(
                scatter_kernel, words.NUM_PAIRS, 1, source, out.address, writing.hparams.num_experts_used, places,
            )
    return target


def _write_shared(
    writing: Writing, moe: MixtureOfExperts, gate_up: list[PackedMatrix], x: Activations
) -> Buffer:
    program, size = writing.program, writing.hparams.shared_expert_ffn_size
    down = writing.matrices(moe.ffn_down_shexp)
    both = program.floats("shared expert", 2 * size)
    program.matmul(gate_up, x, both)
    out = program.floats("shared result", writing.hparams.hidden_size)
    program.matmul(down, writing.activated(both, size, SILU, down), out)
    return out

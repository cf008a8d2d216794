"""What all layers of one forward pass share: the batch, the pools, and tables worked out once per step.

Knows rows, slots and positions; never weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kernels.reference.causal_conv1d import ConvPlan, conv_plan
from kernels.reference.numerics import Numerics
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.state_pool import StatePool
from sparkinfer.model.forward_batch import ForwardBatch
from sparkinfer.model.rope import Rope


@dataclass(frozen=True, slots=True)
class Step:
    """One step's shared tables."""

    batch: ForwardBatch
    kv_cache: KVCache
    state_pool: StatePool
    attention: Mapping[str, Any]                       # layer type -> what numerics.attend wants to know
    angles: Mapping[str, tuple[Tensor, Tensor]]        # layer type -> cos and sin, [num_tokens, n_rot / 2] each
    conv: ConvPlan | None                              # hybrid models only


def plan_step(
    batch: ForwardBatch, kv_cache: KVCache, state_pool: StatePool, hparams: HParams, ropes: Mapping[str, Rope],
    numerics: Numerics,
) -> Step:
    """Work out the shared tables and zero the recurrent state of sequences that start in this step.

    ropes: layer type -> its rotary embedding; a type without one has no positions
    """
    attention: dict[str, Any] = {}
    conv = None
    for layer_type in dict.fromkeys(hparams.layer_types):
        if layer_type == "gated_delta_net":
            conv = conv_plan(batch.query_lens, hparams.ssm_conv_kernel, batch.input_ids.device)
            reset_new_sequences(batch, state_pool)
            continue
        attention[layer_type] = numerics.attention_plan(
            batch.block_tables,
            batch.query_lens,
            batch.context_lens_cpu,
            kv_cache.block_size,
            hparams.sliding_window if layer_type == "sliding_attention" else None,
        )
    angles = {layer_type: rope.cos_sin(batch.positions) for layer_type, rope in ropes.items()}
    return Step(batch, kv_cache, state_pool, attention, angles, conv)


def reset_new_sequences(batch: ForwardBatch, state_pool: StatePool) -> None:
    """Zero the recurrent state of sequences whose first tokens are in the step."""
    lens = zip(batch.query_lens, batch.context_lens_cpu, strict=True)
    starting = [seq for seq, (query_len, context_len) in enumerate(lens) if query_len == context_len]
    if starting:
        state_pool.reset(batch.state_slots[starting])

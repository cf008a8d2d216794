"""The pools as the decode kernels index them: paged keys and values, delta-net states, rings of convolution inputs.

Knows layers, slots and rows; never which sequence is where.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.held_updates import HELD
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.state_pool import StatePool, state_shapes

RING_COLUMNS = 4  # kernels/gated_delta_step.py: as many as the convolution has taps


class RingStatePool(StatePool):
    """A StatePool whose convolution tails are rings: the input of position p lies in column p % 4.

    conv:   per layer [num_slots, 4, channels] f32
    held:   per layer [num_slots, num_key_heads + num_value_heads, HELD, d] f32, what the states lack
            (kernels/held_updates.py); zeros: nothing
    """

    def __init__(self, hparams: HParams, num_slots: int, device: torch.device) -> None:
        super().__init__(hparams, num_slots, device)
        self.held: list[Tensor | None] = [None] * len(self.state)
        if not self.pools:
            return
        heads = hparams.ssm_group_count + hparams.ssm_time_step_rank
        layers = [layer for layer, state in enumerate(self.state) if state is not None]
        held = torch.zeros(len(layers), num_slots, heads, HELD, hparams.ssm_state_size, device=device)
        self.pools.append(held)
        for row, layer in enumerate(layers):
            self.held[layer] = held[row]

    @staticmethod
    def shapes(hparams: HParams) -> tuple[tuple[int, int], tuple[int, int, int]]:
        """Of one slot of one layer: conv, state."""
        (channels, _), state_shape = state_shapes(hparams)
        return (RING_COLUMNS, channels), state_shape


@dataclass(frozen=True, slots=True)
class CudaPools:
    """kv_cache: one block more than the engine may use; state_pool: one slot more. Both last ones are the dummy's."""

    kv_cache: KVCache
    state_pool: RingStatePool


@dataclass(frozen=True, slots=True)
class DecodePools:
    """Per layer, None where it keeps none: kv, kv_scales, conv, state and held as in DecodeInputs."""

    block_size: int
    kv: tuple[tuple[Tensor, Tensor] | None, ...]
    kv_scales: tuple[tuple[Tensor, Tensor] | None, ...]
    conv: tuple[Tensor | None, ...]
    state: tuple[Tensor | None, ...]
    held: tuple[Tensor | None, ...]
    slot_pools: tuple[Tensor, ...]  # [num_layers, num_slots, ...] each: all that a slot keeps

    @classmethod
    def of(cls, pools: CudaPools) -> DecodePools:
        """Views of the same memory."""
        kv_cache, state_pool = pools.kv_cache, pools.state_pool
        pairs = zip(kv_cache.k, kv_cache.v)
        kv = tuple(None if k is None or v is None else (k, v) for k, v in pairs)
        scales = tuple(kv_cache.scales(layer) for layer in range(len(kv)))
        return cls(
            kv_cache.block_size, kv, scales, tuple(state_pool.conv), tuple(state_pool.state), tuple(state_pool.held),
            tuple(state_pool.pools),
        )

    def reset(self, slot: int) -> None:
        """Forget what the slot keeps."""
        for pool in self.slot_pools:
            pool[:, slot].zero_()

"""Owns the recurrent state of gated-delta-net layers, one slot per sequence. Knows slots; never sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkinfer.checkpoint.hparams import HParams


class StatePool:
    """Convolution tails and delta-net states, float32; None stands for the layers that keep none.

    conv:   per layer [num_slots, channels, kernel - 1], inputs of the convolution before the next token
    state:  per layer [num_slots, num_value_heads, d_k, d_v]
    pools:  all of it, [num_layers, num_slots, ...] each; empty where no layer keeps any
    """

    def __init__(self, hparams: HParams, num_slots: int, device: torch.device) -> None:
        self.num_slots = num_slots
        layers = [i for i, layer_type in enumerate(hparams.layer_types) if layer_type == "gated_delta_net"]
        self.conv: list[Tensor | None] = [None] * len(hparams.layer_types)
        self.state: list[Tensor | None] = [None] * len(hparams.layer_types)
        self.pools: list[Tensor] = []
        if not layers:
            return
        conv_shape, state_shape = self.shapes(hparams)
        conv = torch.zeros(len(layers), num_slots, *conv_shape, device=device)
        state = torch.zeros(len(layers), num_slots, *state_shape, device=device)
        self.pools = [conv, state]
        for row, layer in enumerate(layers):
            self.conv[layer] = conv[row]
            self.state[layer] = state[row]

    @property
    def bytes_per_slot(self) -> int:
        """Bytes that one sequence's state takes over all layers."""
        return sum(pool[:, 0].nbytes for pool in self.pools)

    @staticmethod
    def shapes(hparams: HParams) -> tuple[tuple[int, int], tuple[int, int, int]]:
        """Of one slot of one layer: conv, state."""
        return state_shapes(hparams)

    def reset(self, slots: Tensor) -> None:
        """Zero the slots of sequences that start anew.

        slots: [num_slots_to_reset] int64
        """
        for pool in self.pools:
            pool.index_fill_(1, slots, 0.0)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Convolution tail and state of a gated-delta-net layer."""
        conv, state = self.conv[index], self.state[index]
        assert conv is not None, f"layer {index} keeps no state"
        assert state is not None
        return conv, state


def state_shapes(hparams: HParams) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """Shapes of one slot of one layer: the convolution tail and the delta-net state."""
    head_dim = hparams.ssm_state_size
    conv_shape = (hparams.ssm_conv_channels, hparams.ssm_conv_kernel - 1)
    return conv_shape, (hparams.ssm_time_step_rank, head_dim, head_dim)


def bytes_per_slot(hparams: HParams) -> int:
    """What `StatePool.bytes_per_slot` will be."""
    num_layers = sum(layer_type == "gated_delta_net" for layer_type in hparams.layer_types)
    if num_layers == 0:
        return 0
    conv_shape, state_shape = state_shapes(hparams)
    elements = conv_shape[0] * conv_shape[1] + state_shape[0] * state_shape[1] * state_shape[2]
    return num_layers * elements * torch.float32.itemsize

"""Owns the paged key and value pool. Knows layers, rows and types; never which sequence holds which block."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sparkinfer.checkpoint.hparams import HParams


def is_attention(layer_type: str) -> bool:
    """Whether a layer of this type keeps keys and values."""
    return layer_type in ("attention", "sliding_attention")


def bytes_per_block(hparams: HParams, block_size: int, dtype: torch.dtype) -> int:
    """Bytes that one block takes over all attention layers, keys and values."""
    num_layers = sum(map(is_attention, hparams.layer_types))
    return num_layers * 2 * block_size * hparams.num_kv_heads * hparams.head_dim * dtype.itemsize


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on the CPU from pages that take no memory until they are written, which torch.zeros would do at once."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


class KVCache:
    """One pool per attention layer, allocated once; None stands for the layers that keep none.

    k, v: per layer [num_blocks * block_size, num_kv_heads, head_dim]; row = block_id * block_size + offset
    """

    def __init__(
        self, hparams: HParams, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_blocks * block_size, hparams.num_kv_heads, hparams.head_dim)

        def pools() -> list[Tensor | None]:
            return [_zeros(shape, dtype, device) if is_attention(kind) else None for kind in hparams.layer_types]

        self.k = pools()
        self.v = pools()

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of an attention layer."""
        k, v = self.k[index], self.v[index]
        assert k is not None, f"layer {index} keeps no keys"
        assert v is not None
        return k, v

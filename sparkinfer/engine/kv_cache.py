"""Owns the paged key and value pool and its type. Knows layers and rows; never which sequence holds which block."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.errors import ConfigError
from sparkinfer.model.cpu.memory import aligned_bytes

KV_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
SCALE_DTYPE = torch.float16  # one per token and kv head beside int8 rows

# Its outputs fall apart with an int8 cache in the published implementations.
NO_INT8_ARCHITECTURES = ("muse-glimmer",)


def is_attention(layer_type: str) -> bool:
    """Whether a layer of this type keeps keys and values."""
    return layer_type in ("attention", "sliding_attention")


def bytes_per_block(hparams: HParams, block_size: int, dtype: torch.dtype) -> int:
    """Bytes that one block takes over all attention layers, keys, values and int8's scales."""
    num_layers = sum(map(is_attention, hparams.layer_types))
    row_bytes = hparams.head_dim * dtype.itemsize + (SCALE_DTYPE.itemsize if dtype == torch.int8 else 0)
    return num_layers * 2 * block_size * hparams.num_kv_heads * row_bytes


def choose_kv_dtype(name: str, hparams: HParams, device: torch.device) -> torch.dtype:
    """[engine] kv_dtype as a type; "auto": f16 on the CPU, half of f32's bytes, and bf16 on an accelerator.

    Raises ConfigError where the model does not stand an int8 cache, or the device knows no f16 one.
    """
    if name == "auto":
        return torch.float16 if device.type == "cpu" else torch.bfloat16
    if name == "f16" and device.type != "cpu":
        raise ConfigError("[engine] kv_dtype = 'f16' is for CPUs; allowed here: auto, f32, bf16, int8")
    if name == "int8" and hparams.architecture in NO_INT8_ARCHITECTURES:
        raise ConfigError(
            f"[engine] kv_dtype = 'int8': {hparams.architecture} models fail with it; allowed: auto, f32, f16, bf16"
        )
    return KV_DTYPES[name]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on the CPU from pages that take no memory until they are written, which torch.zeros would do at once."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(aligned_bytes(math.prod(shape) * dtype.itemsize)).view(dtype).view(shape)


class KVCache:
    """One pool per attention layer, allocated once; None stands for the layers that keep none.

    k, v:             per layer [num_blocks * block_size, num_kv_heads, head_dim]; row = block_id * block_size + offset
    k_scale, v_scale: per layer [num_blocks * block_size, num_kv_heads] f16 with int8 rows, else None
    """

    def __init__(
        self, hparams: HParams, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        rows = num_blocks * block_size

        def pools(dtype: torch.dtype, *row_shape: int) -> list[Tensor | None]:
            shape = (rows, *row_shape)
            return [_zeros(shape, dtype, device) if is_attention(kind) else None for kind in hparams.layer_types]

        self.k = pools(dtype, hparams.num_kv_heads, hparams.head_dim)
        self.v = pools(dtype, hparams.num_kv_heads, hparams.head_dim)
        self.k_scale: list[Tensor | None] = [None] * len(hparams.layer_types)
        self.v_scale: list[Tensor | None] = [None] * len(hparams.layer_types)
        if dtype == torch.int8:
            self.k_scale = pools(SCALE_DTYPE, hparams.num_kv_heads)
            self.v_scale = pools(SCALE_DTYPE, hparams.num_kv_heads)

    @property
    def pools(self) -> list[Tensor]:
        """All there is, each [num_blocks * block_size, ...]."""
        return [pool for pools in (self.k, self.v, self.k_scale, self.v_scale) for pool in pools if pool is not None]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of an attention layer."""
        k, v = self.k[index], self.v[index]
        assert k is not None, f"layer {index} keeps no keys"
        assert v is not None
        return k, v

    def scales(self, index: int) -> tuple[Tensor, Tensor] | None:
        """Scales of the keys and values of an attention layer; None unless its rows are int8."""
        k_scale, v_scale = self.k_scale[index], self.v_scale[index]
        if k_scale is None or v_scale is None:
            return None
        return k_scale, v_scale

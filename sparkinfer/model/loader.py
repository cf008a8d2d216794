"""Fills a model's tensors from a checkpoint, dequantised to float32. Knows names and shapes; never layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.errors import CheckpointError
from sparkinfer.model.module import Module

Progress = Callable[[int, int], None]  # (bytes_done, bytes_total) of the checkpoint's tensor data


def load_tensors(model: Module, gguf: GGUFFile, device: torch.device, progress: Progress) -> None:
    """Read every unloaded tensor of `model` and let its modules prepare.

    Raises CheckpointError naming a tensor that is missing, of another shape, or not finite.
    """
    slots = {name: (owner, attribute) for name, owner, attribute in model.unloaded_tensors()}
    bytes_total = sum(gguf.tensors[name].num_bytes for name in slots if name in gguf.tensors)
    bytes_done = 0
    for name, (owner, attribute) in slots.items():
        setattr(owner, attribute, read_tensor(gguf, name, getattr(owner, attribute).shape, device))
        bytes_done += gguf.tensors[name].num_bytes
        progress(bytes_done, bytes_total)
    for module in list(model.modules()):
        module.prepare()


def read_tensor(gguf: GGUFFile, name: str, shape: torch.Size, device: torch.device) -> Tensor:
    """One tensor in f32, multiplied by the factor that lies beside it. Errors as load_tensors'."""
    info = gguf.tensors.get(name)
    if info is None:
        raise CheckpointError(f"{gguf.path}: tensor {name!r} is missing; expected shape {tuple(shape)}")
    if _without_ones(info.shape) != _without_ones(shape):
        raise CheckpointError(f"{gguf.path}: tensor {name!r} has shape {info.shape}; expected {tuple(shape)}")
    values = gguf.dequantize(name).reshape(shape)
    factor_name = scale_name(name)
    if factor_name in gguf.tensors:
        scale = gguf.dequantize(factor_name).reshape(-1)
        values = values * scale.reshape(-1, *[1] * (values.ndim - 1))
    tensor = torch.empty(shape, dtype=torch.float32)
    np.copyto(tensor.numpy(), values)
    if not torch.stack(torch.aminmax(tensor)).isfinite().all():  # one pass: both are NaN if any value is
        raise CheckpointError(f"{gguf.path}: tensor {name!r} holds values that are not finite: the file is damaged")
    return tensor.to(device)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def scale_name(name: str) -> str:
    """The factor that belongs to a tensor whose format has no room for one (NVFP4): [1], or [num_experts]."""
    return name.removesuffix(".weight") + ".scale"

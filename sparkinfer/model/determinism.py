"""Makes a loaded model's outputs independent of the batch, to the last bit. Knows modules; never steps or requests."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.invariant_matmul import InvariantMatmul, RowsDependError
from kernels.reference.invariant_numerics import invariant_numerics
from sparkinfer.errors import ConfigError
from sparkinfer.model.linear import Linear
from sparkinfer.model.module import Module
from sparkinfer.model.moe import Experts, MixtureOfExperts


def make_deterministic(model: Module, device: torch.device) -> None:
    """From now on a token's logits have the same bits whatever else runs, however its prompt is cut into steps, and
    whether it was decoded or prefilled.

    That holds for one build, model, number of threads (torch.set_num_threads, to be called before) and machine type.
    Raises ConfigError where this machine's matrix library cannot do it, and on an accelerator.
    """
    if device.type != "cpu":
        raise ConfigError(
            f"[engine] deterministic = true: on {device.type} this model has no kernels that keep rows apart; "
            "allowed: with device = \"cpu\""
        )
    matmul = InvariantMatmul()
    numerics = invariant_numerics(matmul)
    try:
        for module in model.modules():
            module.numerics = numerics
            for matrix in _matrices(module):
                matmul.check(matrix)
    except RowsDependError as error:
        raise ConfigError(
            f"[engine] deterministic = true: not possible with {torch.get_num_threads()} threads here ({error}); "
            "set [engine] threads = 1"
        ) from error


def _matrices(module: Module) -> list[Tensor]:
    if not isinstance(module, Linear | Experts | MixtureOfExperts):
        return []
    tensors = [value for value in vars(module).values() if isinstance(value, Tensor)]
    return [tensor[0] if tensor.dim() == 3 else tensor for tensor in tensors if tensor.dim() >= 2]

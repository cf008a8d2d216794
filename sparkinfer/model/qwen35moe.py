"""`qwen35moe`: qwen35's layers with experts and a shared expert; Qwen3.5 and 3.6 35B-A3B and larger."""

from __future__ import annotations

from collections.abc import Collection

import torch

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.moe import MixtureOfExperts
from sparkinfer.model.qwen35 import HybridTransformer


class Qwen35Moe(HybridTransformer):
    """The hybrid mixture of experts."""

    def __init__(self, hparams: HParams, tensor_names: Collection[str], device: torch.device) -> None:
        super().__init__(hparams, lambda layer: MixtureOfExperts(hparams, layer, tensor_names), device)

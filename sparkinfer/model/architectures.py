"""Which class builds which `general.architecture`. Knows names; never what is inside."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.gemma3 import Gemma3
from sparkinfer.model.llama import Llama
from sparkinfer.model.muse_glimmer import MuseGlimmer
from sparkinfer.model.qwen2 import Qwen2
from sparkinfer.model.qwen3 import Qwen3
from sparkinfer.model.qwen3moe import Qwen3Moe
from sparkinfer.model.qwen35 import Qwen35
from sparkinfer.model.qwen35moe import Qwen35Moe
from sparkinfer.model.transformer import Transformer

# Builds the model without its weights: (hparams, names of the checkpoint's tensors, device).
Builder = Callable[[HParams, Collection[str], torch.device], Transformer]

ARCHITECTURES: dict[str, Builder] = {
    "gemma3": Gemma3,
    "llama": Llama,
    "muse-glimmer": MuseGlimmer,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
    "qwen35": Qwen35,
    "qwen35moe": Qwen35Moe,
    "qwen3moe": Qwen3Moe,
}

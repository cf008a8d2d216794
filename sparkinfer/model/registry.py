"""What the engine sees of a model, and `load_model`. Knows `general.architecture`; never what is inside."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.state_pool import StatePool
from sparkinfer.errors import CheckpointError
from sparkinfer.model.architectures import ARCHITECTURES
from sparkinfer.model.determinism import make_deterministic
from sparkinfer.model.forward_batch import ForwardBatch
from sparkinfer.model.loader import Progress, load_tensors


class Model(Protocol):
    """What the engine drives. The caller provides torch.inference_mode."""

    hparams: HParams

    def forward(self, batch: ForwardBatch, kv_cache: KVCache, state_pool: StatePool) -> Tensor:
        """Run one step: stores keys, values and states, returns logits [num_logits, vocab_size] f32."""

    def hidden_states(self, batch: ForwardBatch, kv_cache: KVCache, state_pool: StatePool) -> Tensor:
        """As `forward`, up to what `head` takes: [num_tokens, hidden_size], a row for each token of the step."""

    def head(self, x: Tensor) -> Tensor:
        """Rows of hidden states, in any number and order -> logits [num_rows, vocab_size] f32."""


def load_model(
    gguf: GGUFFile, hparams: HParams, device: torch.device, progress: Progress, is_deterministic: bool = False
) -> Model:
    """Build the model that the checkpoint holds and load its weights onto `device`.

    progress(bytes_done, bytes_total) is called after every tensor.
    is_deterministic: see make_deterministic
    Raises CheckpointError for an unknown architecture, or a missing, wrongly shaped or damaged tensor.
    """
    architecture = ARCHITECTURES.get(hparams.architecture)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(f"{gguf.path}: architecture {hparams.architecture!r} is not supported; known: {known}")
    model = architecture(hparams, gguf.tensors.keys(), device)
    load_tensors(model, gguf, device, progress)
    if is_deterministic:
        make_deterministic(model, device)
    return model

"""Bytes that a step cannot do without: each weight once, keys and values, recurrent states. Knows no device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from sparkinfer.bench.case import Chunk
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.checkpoint.memory_plan import is_nextn
from sparkinfer.engine.kv_cache import bytes_per_block, is_attention
from sparkinfer.engine.state_pool import bytes_per_slot

EMBEDDING = "token_embd.weight"
_EXPERT_MARK = "_exps."


class Traffic:
    """Counts from the file's tensors, whatever the kernels really do, but for states.

    weights:  every tensor once a step, but of the embedding the rows looked up, and of the experts those that
              independent uniform choices meet on average
    """

    def __init__(
        self, gguf: GGUFFile, hparams: HParams, kv_dtype: torch.dtype, weights_are_f32: bool, state_passes: float = 2.0
    ) -> None:
        """state_passes: how often a state is read or written for one token of a sequence"""
        self._state_passes = state_passes
        self._hparams = hparams
        self._always = self._experts = 0
        for name, info in gguf.tensors.items():
            if is_nextn(name, hparams):
                continue
            num_bytes = 4 * info.num_elements if weights_are_f32 else info.num_bytes
            if name == EMBEDDING:
                self._embedding_row = num_bytes // info.shape[0]
                self._always += num_bytes if hparams.has_tied_embeddings else 0
            elif _EXPERT_MARK in name:
                self._experts += num_bytes
            else:
                self._always += num_bytes
        layers = hparams.layer_types
        self._kv_row = bytes_per_block(hparams, 1, kv_dtype) // max(1, sum(map(is_attention, layers)))
        self._full_layers = layers.count("attention")
        self._window_layers = layers.count("sliding_attention")

    def step_bytes(self, step: Sequence[Chunk]) -> float:
        """Bytes read and written by one step."""
        num_tokens = sum(chunk.num_tokens for chunk in step)
        weights = self._always + self._experts * self._share_of_experts(num_tokens) + num_tokens * self._embedding_row
        rows = sum(self._kv_rows(chunk) for chunk in step)
        passes = sum(self._state_passes if chunk.num_tokens == 1 else 2.0 for chunk in step)
        return weights + rows * self._kv_row + passes * bytes_per_slot(self._hparams)

    def _share_of_experts(self, num_tokens: int) -> float:
        used, experts = self._hparams.num_experts_used, self._hparams.num_experts
        return 1 - math.pow(1 - used / experts, num_tokens) if experts else 0.0

    def _kv_rows(self, chunk: Chunk) -> int:
        """Rows of keys and values, one layer's, that a chunk reads (its own among them) and writes."""
        end = chunk.start + chunk.num_tokens
        seen = min(end, self._hparams.sliding_window - 1 + chunk.num_tokens)
        layers = self._full_layers + self._window_layers
        return self._full_layers * end + self._window_layers * seen + layers * chunk.num_tokens

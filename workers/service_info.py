"""The model's facts that the gpu scheduler publishes for the http workers (ModelInfo in sparkinfer/api/models.py)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from sparkinfer.checkpoint.file_type import quantization_name
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.checkpoint.sampling_defaults import sampling_defaults
from sparkinfer.config import ModelConfig


def service_info(
    config: ModelConfig, gguf: GGUFFile, hparams: HParams, max_model_len: int, is_greedy: bool
) -> dict[str, Any]:
    """max_model_len: tokens of prompt and answer that the pools have room for.

    is_greedy: requests that say nothing are greedy, whatever the file advises
    """
    return {
        "model": config.name or gguf.path.stem.lower(),
        "max_model_len": max_model_len,
        "max_output_tokens": min(config.max_output_tokens, max_model_len),
        "vocab_size": hparams.vocab_size,
        "architecture": hparams.architecture,
        "quantization": quantization_name(gguf.metadata),
        "reasoning": "<think>" in str(gguf.metadata.get("tokenizer.chat_template", "")),
        "created": config.created or int(Path(gguf.path).stat().st_mtime),
        "num_parameters": sum(math.prod(tensor.shape) for tensor in gguf.tensors.values()),
        "num_bytes": sum(tensor.num_bytes for tensor in gguf.tensors.values()),
        "metadata": _shape(hparams),
        "sampling_defaults": {"temperature": 0.0} if is_greedy else sampling_defaults(gguf.metadata, gguf.path),
    }


def _shape(hparams: HParams) -> dict[str, int | str]:
    arch = hparams.architecture
    return {
        "general.architecture": arch,
        f"{arch}.block_count": hparams.num_layers,
        f"{arch}.embedding_length": hparams.hidden_size,
        f"{arch}.attention.head_count": hparams.num_q_heads,
        f"{arch}.attention.head_count_kv": hparams.num_kv_heads,
    }

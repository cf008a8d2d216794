"""What the scheduler publishes about a model decodes on the http side, whatever the file's metadata says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sparkinfer.api.models import model_info_from_json
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import ModelConfig
from tests.checkpoint.builder import VOCAB, gguf_bytes, model_metadata, model_tensors
from workers.service_info import service_info


@pytest.mark.parametrize("changes", [
    {},
    {"general.sampling.temp": "hot", "general.sampling.top_k": [1], "general.sampling.top_p": float("nan")},
    {"general.sampling.temp": -3.0, "general.sampling.min_p": 7.0},
    {"general.name": 3, "general.file_type": "Q4", "general.url": [1]},
])
def test_facts_decode(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "Tiny.gguf"
    path.write_bytes(gguf_bytes(model_metadata("llama", 1) | changes, model_tensors("llama", 1)))
    gguf = GGUFFile.open(path)
    facts = service_info(ModelConfig(), gguf, HParams.from_gguf(gguf), 64, is_greedy=False)
    info = model_info_from_json(msgspec.json.encode(facts))
    assert (info.model, info.vocab_size, info.max_model_len, info.quantization) == ("tiny", VOCAB, 64, None)
    assert (info.sampling_defaults.temperature, info.sampling_defaults.top_p) == (1.0, 1.0)

"""GGUF files that hold no model are called what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.errors import CheckpointError
from tests.checkpoint.builder import Tensor, gguf_bytes, model_metadata, model_tensors


def read(folder: Path, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> HParams:
    path = folder / "model.gguf"
    path.write_bytes(gguf_bytes(metadata, tensors))
    return HParams.from_gguf(GGUFFile.open(path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general.type": "adapter", "adapter.type": "lora"}, "a LoRA adapter"),
        ({"general.type": "mmproj"}, r"a vision projector \(mmproj\)"),
        ({"general.architecture": "clip"}, r"a vision projector \(mmproj\)"),
        ({"general.type": "imatrix"}, "an importance matrix"),
    ],
)
def test_a_file_that_is_no_model_is_called_what_it_is(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    for tensors in (model_tensors("llama", 2), {}):
        with pytest.raises(CheckpointError, match=rf"model\.gguf: the file is {words}.*, not a model"):
            read(tmp_path, model_metadata("llama", 2) | changes, tensors)


def test_a_vocabulary_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.gguf: the file is a vocabulary without tensors, not a model"):
        read(tmp_path, model_metadata("llama", 2), {})
    metadata = model_metadata("llama", 2) | {"general.type": "model"}
    assert read(tmp_path, metadata, model_tensors("llama", 2)).num_layers == 2

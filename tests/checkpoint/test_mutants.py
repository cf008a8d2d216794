"""A thousand damaged files, a different thousand for each seed written here; more with `tests.checkpoint.mutants`."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkinfer.errors import CheckpointError
from tests.checkpoint import mutants

MUTANTS = 1000
MAX_PEAK_BYTES = 4 << 20  # the files have some 10 kB; a count that was believed would take gigabytes


def test_the_originals_are_valid(tmp_path: Path) -> None:
    for content in mutants.originals():
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        mutants.use(path)


def test_a_damaged_file_is_refused_or_opened_and_nothing_else(tmp_path: Path) -> None:
    outcome = mutants.run(MUTANTS, seed=20261201, folder=tmp_path)
    assert outcome.opened + outcome.refused == MUTANTS
    assert outcome.refused > MUTANTS // 3
    assert outcome.opened > MUTANTS // 20
    assert outcome.peak_bytes < MAX_PEAK_BYTES


def test_overlapping_tensors_are_always_refused(tmp_path: Path) -> None:
    """Every pair of tensors, the second moved onto the first."""
    tensors = mutants.model_tensors("llama", 1)
    names = list(tensors)
    path = tmp_path / "model.gguf"
    for name in names[1:]:
        moved = mutants.Tensor(tensors[name].shape, tensors[name].ggml_type, offset=0)
        path.write_bytes(mutants.gguf_bytes(mutants.model_metadata("llama", 1), tensors | {name: moved}))
        with pytest.raises(CheckpointError, match="overlap"):
            mutants.use(path)

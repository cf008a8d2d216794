"""What fits into the memory that is free."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.checkpoint.memory_plan import weights_f32_bytes
from sparkinfer.engine import memory_plan
from sparkinfer.engine.memory_plan import check_weights_fit
from sparkinfer.errors import CheckpointError
from tests.checkpoint.builder import gguf_bytes, model_metadata, model_tensors


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_bytes(model_metadata("llama", 1), model_tensors("llama", 1)))
    gguf = GGUFFile.open(path)
    hparams = HParams.from_gguf(gguf)
    needed = weights_f32_bytes(gguf, hparams)
    check_weights_fit(gguf, hparams, needed)
    with pytest.raises(CheckpointError, match=r"tiny\.gguf: the weights take 0\.00 GiB as float32"):
        check_weights_fit(gguf, hparams, needed - 1)


@pytest.mark.parametrize(("limit", "free"), [("max", 10_000), ("5000", 5000 - 4000 + 1500), ("2000", 0)])
def test_cached_files_in_a_container_make_way(
    limit: str, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("4000\n")
    (tmp_path / "memory.stat").write_text("anon 2500\nfile 1600\nshmem 100\ninactive_file 1200\nactive_file 300\n")
    monkeypatch.setattr(memory_plan, "CGROUP", tmp_path)
    assert memory_plan._free_in_cgroup(10_000) == free
    monkeypatch.setattr(memory_plan, "CGROUP", tmp_path / "none")
    assert memory_plan._free_in_cgroup(10_000) == 10_000

"""Split models and folders."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.errors import CheckpointError
from tests.checkpoint.builder import Tensor, Typed, gguf_bytes

WEIGHTS = {f"blk.{i}.w": np.full((2, 8), i, np.float32) for i in range(5)}


@pytest.fixture
def split_model(tmp_path: Path) -> list[Path]:
    """Five tensors in three files, as gguf-py splits them."""
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama", split_max_tensors=2)
    writer.add_name("tiny")
    for name, values in WEIGHTS.items():
        writer.add_tensor(name, values)
    for finish in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        finish()
    writer.close()
    return [tmp_path / f"tiny-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]


def shard(number: int, count: int, names: str, total: int) -> bytes:
    split = {"split.no": Typed("u16", number), "split.count": Typed("u16", count), "split.tensors.count": total}
    return gguf_bytes(split, {name: Tensor((8,)) for name in names})


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_shard_opens_the_model(split_model: list[Path], given: int) -> None:
    model = GGUFFile.open(split_model[given])
    assert model.paths == split_model
    assert model.path == split_model[0]
    assert model.metadata["general.name"] == "tiny"
    for name, values in WEIGHTS.items():
        np.testing.assert_array_equal(model.dequantize(name), values)
    assert {model.tensors[name].shard for name in WEIGHTS} == {0, 1, 2}


def test_the_folder_opens_the_model(split_model: list[Path]) -> None:
    folder = split_model[0].parent
    (folder / "mmproj-tiny.gguf").write_bytes(b"a vision projector")
    (folder / "tiny-MMPROJ-f16.gguf").write_bytes(b"another")
    (folder / "README.md").write_text("not a model")
    assert GGUFFile.open(folder).paths == split_model


def test_a_missing_shard_is_named(split_model: list[Path]) -> None:
    split_model[1].unlink()
    with pytest.raises(CheckpointError, match=r"split into 3 files, and .*tiny-00002-of-00003\.gguf is missing"):
        GGUFFile.open(split_model[0])


def test_a_renamed_shard_says_how_it_must_be_named(split_model: list[Path]) -> None:
    renamed = split_model[0].rename(split_model[0].with_name("first.gguf"))
    with pytest.raises(CheckpointError, match=r"first\.gguf: split\.count is 3, so the file must be named like"):
        GGUFFile.open(renamed)


def test_swapped_shards_are_found(split_model: list[Path]) -> None:
    first, second, _ = split_model
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"00001-of-00003\.gguf: split\.no and split\.count are 1 and 3"):
        GGUFFile.open(first)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(shard(0, 2, "ab", 3))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(shard(1, 2, "bc", 3))
    with pytest.raises(CheckpointError, match=r"00002-of-00002\.gguf: tensor 'b' is also in .*00001-of-00002\.gguf"):
        GGUFFile.open(tmp_path)


def test_a_wrong_total(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(shard(0, 2, "ab", 9))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(shard(1, 2, "c", 9))
    with pytest.raises(CheckpointError, match=r"split\.tensors\.count is 9, the 2 files hold 3 tensors"):
        GGUFFile.open(tmp_path)


@pytest.mark.parametrize("count", [Typed("u32", 2**31), "three"])
def test_an_absurd_count(tmp_path: Path, count: object) -> None:
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(gguf_bytes({"split.count": count}))
    with pytest.raises(CheckpointError, match=r"split\.count is .* it must be an integer from 0 to 1024"):
        GGUFFile.open(tmp_path)


def test_a_folder_without_or_with_two_models(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no \.gguf model"):
        GGUFFile.open(tmp_path)
    (tmp_path / "a.gguf").write_bytes(gguf_bytes({}))
    (tmp_path / "b.GGUF").write_bytes(gguf_bytes({}))
    with pytest.raises(CheckpointError, match=r"holds 2 models \(a\.gguf, b\.GGUF\); name one of them"):
        GGUFFile.open(tmp_path)

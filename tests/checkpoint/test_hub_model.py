"""Choosing and fetching files of a hub repository, with a stand-in for the hub."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from sparkinfer.checkpoint import disk_space
from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.errors import CheckpointError

FILES = (
    "README.md", "mmproj-F16.gguf", "imatrix_unsloth.gguf", "Big-7B-Q4_K_M.gguf", "Big-7B-UD-Q4_K_XL.gguf",
    "Big-7B-Q8_0.gguf", "BF16/Big-7B-BF16-00001-of-00002.gguf", "BF16/Big-7B-BF16-00002-of-00002.gguf",
)


class Hub:
    """Lists `files` and "downloads" them; counts both."""

    def __init__(self, files: tuple[str, ...], error: Exception | None = None) -> None:
        self.files, self.error = files, error
        self.listed = 0
        self.downloaded: list[str] = []

    def model_info(self, repository: str, files_metadata: bool) -> Any:
        self.listed += 1
        if self.error is not None:
            raise self.error
        assert files_metadata
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name, size=1 << 20) for name in self.files])

    def download(self, repository: str, name: str, local_dir: Path) -> str:
        if self.error is not None:
            raise self.error
        path = local_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
        self.downloaded.append(name)
        return str(path)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(FILES)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub.download)
    return hub


def fetch(reference: str, cache: Path) -> str:
    path = resolve(reference, cache, lambda _: None)
    assert path.exists()
    return str(path.relative_to(cache / "hf/owner/repo"))


@pytest.mark.parametrize(
    ("quant", "name"),
    [
        ("Q4_K_M", "Big-7B-Q4_K_M.gguf"),
        ("q8_0", "Big-7B-Q8_0.gguf"),
        ("UD-Q4_K_XL", "Big-7B-UD-Q4_K_XL.gguf"),
        ("Q4_K_XL", "Big-7B-UD-Q4_K_XL.gguf"),
        ("bf16", "BF16/Big-7B-BF16-00001-of-00002.gguf"),
    ],
)
def test_the_quant_chooses_the_file(hub: Hub, tmp_path: Path, quant: str, name: str) -> None:
    assert fetch(f"hf:owner/repo:{quant}", tmp_path) == name


def test_all_shards_are_fetched(hub: Hub, tmp_path: Path) -> None:
    fetch("hf:owner/repo:BF16", tmp_path)
    assert hub.downloaded == [name for name in FILES if "BF16-0" in name]


def test_what_is_there_needs_no_hub(hub: Hub, tmp_path: Path) -> None:
    for quant in ("Q8_0", "BF16"):
        name = fetch(f"hf:owner/repo:{quant}", tmp_path)
        before = (hub.listed, list(hub.downloaded))
        hub.error = OSError("no network")
        assert fetch(f"hf:owner/repo:{quant}", tmp_path) == name
        assert (hub.listed, hub.downloaded) == before
        hub.error = None


def test_an_incomplete_set_is_completed(hub: Hub, tmp_path: Path) -> None:
    hub.download("owner/repo", "BF16/Big-7B-BF16-00001-of-00002.gguf", tmp_path / "hf/owner/repo")
    hub.downloaded.clear()
    fetch("hf:owner/repo:BF16", tmp_path)
    assert hub.downloaded == ["BF16/Big-7B-BF16-00002-of-00002.gguf"]


def test_a_loose_match_works_offline_too(hub: Hub, tmp_path: Path) -> None:
    name = fetch("hf:owner/repo:Q4_K_XL", tmp_path)
    hub.error = ConnectionError("no network")
    assert fetch("hf:owner/repo:Q4_K_XL", tmp_path) == name


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("hf:owner/repo:Q2_K", r"no file matches 'Q2_K'; these are there: BF16, Q4_K_M, Q8_0, UD-Q4_K_XL"),
        ("hf:owner/repo", r"hf:owner/repo: add :QUANT, one of BF16, Q4_K_M"),
        ("hf:repo:Q4_K_M", r"a hub model is written hf:OWNER/REPO:QUANT"),
        ("hf:../../etc:Q4_K_M", r"a hub model is written hf:OWNER/REPO:QUANT"),
        ("hf:owner/..:Q4_K_M", r"a hub model is written hf:OWNER/REPO:QUANT"),
    ],
)
def test_no_match(hub: Hub, tmp_path: Path, reference: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        resolve(reference, tmp_path, lambda _: None)
    assert not hub.downloaded


def test_several_matches(hub: Hub, tmp_path: Path) -> None:
    hub.files = ("A-Q8_0.gguf", "B-Q8_0.gguf")
    with pytest.raises(CheckpointError, match=r"'Q8_0' matches several models: A-Q8_0, B-Q8_0"):
        fetch("hf:owner/repo:Q8_0", tmp_path)


def test_a_repository_with_one_model_needs_no_quant(hub: Hub, tmp_path: Path) -> None:
    hub.files = ("mmproj.gguf", "Only-Q8_0.gguf")
    assert fetch("hf:owner/repo", tmp_path) == "Only-Q8_0.gguf"


def test_no_model_at_all(hub: Hub, tmp_path: Path) -> None:
    hub.files = ("model.safetensors",)
    with pytest.raises(CheckpointError, match=r"the repository holds no \.gguf model"):
        fetch("hf:owner/repo:Q8_0", tmp_path)


def test_no_network(hub: Hub, tmp_path: Path) -> None:
    hub.error = ConnectionError("Name or service not known")
    with pytest.raises(CheckpointError, match=r"hf:owner/repo: the hub cannot be reached: Name or service not known"):
        fetch("hf:owner/repo:Q8_0", tmp_path)


def test_a_full_disk(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = disk_space.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CheckpointError, match=r"hf/owner/repo: the download needs 2097152 bytes, 1000 are free"):
        fetch("hf:owner/repo:BF16", tmp_path)

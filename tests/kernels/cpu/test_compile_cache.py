"""Compiled kernels are read again as they were written, or made anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.cpu import compile_cache

OBJECT = bytes(range(256)) * 4


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compile_cache, "_folder", tmp_path)
    return tmp_path


def made_again() -> bool:
    """Whether the cache asks for the object file."""
    asked = []

    def make() -> bytes:
        asked.append(True)
        return OBJECT

    assert compile_cache.object_file("kernel", make) == OBJECT
    return bool(asked)


def test_it_is_made_once(folder: Path) -> None:
    assert [made_again(), made_again()] == [True, False]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",  # a power cut
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: content[:100] + b"?" + content[101:],
        lambda content: b"?" + content[1:],
        lambda content: content + b"?",
    ],
)
def test_a_damaged_file_is_made_again(damage: Callable[[bytes], bytes], folder: Path) -> None:
    made_again()
    (path,) = folder.glob("*/kernel.o")
    path.write_bytes(damage(path.read_bytes()))
    assert [made_again(), made_again()] == [True, False]


def test_a_folder_that_cannot_be_written_keeps_nothing(folder: Path) -> None:
    (folder / compile_cache._digest()).write_text("in the way")
    assert [made_again(), made_again()] == [True, True]

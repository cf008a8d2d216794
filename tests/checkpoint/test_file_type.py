"""The type that a file states about itself."""

from __future__ import annotations

import gguf
import pytest

from sparkinfer.checkpoint.file_type import quantization_name

UNKNOWN = {"Q1_0"}  # newer than our tensor types


@pytest.mark.parametrize("member", [m for m in gguf.LlamaFileType if m.name != "GUESSED"], ids=str)
def test_names_are_those_of_the_format(member: gguf.LlamaFileType) -> None:
    name = member.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    assert quantization_name({"general.file_type": int(member)}) == (None if name in UNKNOWN else name)


def test_odd_values() -> None:
    assert quantization_name({"general.file_type": 1024 + 15}) == "Q4_K_M"
    assert [quantization_name(m) for m in ({}, {"general.file_type": 99}, {"general.file_type": "15"})] == [None] * 3

"""One file: what it says is read as written, and what is wrong with it is named."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sparkinfer.checkpoint.ggml_type import GGMLType
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.errors import CheckpointError
from tests.checkpoint.builder import STRING, Tensor, Typed, gguf_bytes, string

ONE_TENSOR = {"w": Tensor((2, 4))}


def write(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


def open_bytes(folder: Path, content: bytes) -> GGUFFile:
    return GGUFFile.open(write(folder, content))


def test_every_value_type(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {
        "u8": Typed("u8", 255), "i8": Typed("i8", -128), "u16": Typed("u16", 65535), "i16": Typed("i16", -32768),
        "u32": Typed("u32", 2**32 - 1), "i32": Typed("i32", -(2**31)), "u64": Typed("u64", 2**64 - 1),
        "i64": Typed("i64", -(2**63)), "f32": 0.5, "f64": Typed("f64", 0.1), "yes": True, "no": False,
        "text": "Grüße, 世界", "empty": "", "words": ["a", "", "ü"], "numbers": [Typed("i16", -1), Typed("i16", 2)],
        "flags": [True, False], "floats": [0.25, -2.0], "none": [], "nested": [[1, 2], [], [3]],
        "strings of strings": [["x"], ["y", "z"]],
    }
    read = open_bytes(tmp_path, gguf_bytes(metadata)).metadata
    expected = {key: value.value if isinstance(value, Typed) else value for key, value in metadata.items()}
    assert read == expected | {"numbers": [-1, 2]}
    assert list(read) == list(metadata)
    assert {type(value) for value in read.values()} == {int, float, bool, str, list}


SCALARS = st.integers(0, 2**32 - 1) | st.text(max_size=20) | st.booleans() | st.floats(width=32, allow_nan=False)
LISTS = st.one_of(
    st.lists(st.integers(0, 2**32 - 1)), st.lists(st.text(max_size=20)), st.lists(st.booleans()),
    st.lists(st.lists(st.text(max_size=5), min_size=1, max_size=4), max_size=4),
)


@given(metadata=st.dictionaries(st.text(min_size=1, max_size=30), SCALARS | LISTS, max_size=6))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_metadata_is_read_as_written(tmp_path: Path, metadata: dict[str, Any]) -> None:
    assume("general.alignment" not in metadata and "split.count" not in metadata)
    assert open_bytes(tmp_path, gguf_bytes(metadata)).metadata == metadata


def test_a_bool_may_be_any_non_zero_byte(tmp_path: Path) -> None:
    read = open_bytes(tmp_path, gguf_bytes({"flag": Typed("bool", raw=b"\x80")})).metadata
    assert read["flag"] is True


def test_what_gguf_py_writes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    weights = np.random.default_rng(0).standard_normal((6, 64), np.float32)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(128)
    writer.add_uint64("wide", 2**40)
    writer.add_array("list", [1, 2, 3])
    writer.add_token_list(["<s>", "Ġa"])
    writer.add_tensor("f32", weights)
    writer.add_tensor("f16", weights.astype(np.float16))
    quantized = gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q8_0", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("cube", weights.reshape(2, 3, 64))
    for finish in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        finish()
    writer.close()

    model = GGUFFile.open(path)
    assert model.metadata["general.architecture"] == "llama"
    assert (model.metadata["wide"], model.metadata["list"]) == (2**40, [1, 2, 3])
    assert model.metadata["tokenizer.ggml.tokens"] == ["<s>", "Ġa"]
    assert {name: info.shape for name, info in model.tensors.items()} == {
        "f32": (6, 64), "f16": (6, 64), "q8_0": (6, 64), "cube": (2, 3, 64)
    }
    assert model.tensors["q8_0"].ggml_type is GGMLType.Q8_0
    np.testing.assert_array_equal(model.dequantize("f32"), weights)
    np.testing.assert_array_equal(model.dequantize("cube"), weights.reshape(2, 3, 64))
    np.testing.assert_array_equal(model.dequantize("f16"), weights.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(model.data("q8_0"), quantized)
    assert model.data("cube").shape == (6, 256)


def test_data_is_a_read_only_view_that_outlives_the_file_object(tmp_path: Path) -> None:
    view = open_bytes(tmp_path, gguf_bytes({}, {"w": Tensor((2, 2), raw=bytes(range(16)))})).data("w")
    assert not view.flags.writeable
    assert not view.flags.owndata
    np.testing.assert_array_equal(view, np.arange(16, dtype=np.uint8).reshape(2, 8))


def test_a_large_vocabulary(tmp_path: Path) -> None:
    tokens = [f"Ġtoken{i}" for i in range(248_320)]
    read = open_bytes(tmp_path, gguf_bytes({"tokenizer.ggml.tokens": tokens})).metadata["tokenizer.ggml.tokens"]
    assert read == tokens


def test_bytes_that_are_not_utf_8_survive(tmp_path: Path) -> None:
    tokens = [b"\xff\xfe", "ok", b"a\xc3"]
    read = open_bytes(tmp_path, gguf_bytes({"tokens": tokens})).metadata["tokens"]
    assert [token.encode("utf-8", "surrogateescape") for token in read] == [b"\xff\xfe", b"ok", b"a\xc3"]


def test_version_2_is_read(tmp_path: Path) -> None:
    assert open_bytes(tmp_path, gguf_bytes({"a": 1}, ONE_TENSOR, version=2)).metadata == {"a": 1}


def test_tensors_may_come_in_any_order_and_with_gaps(tmp_path: Path) -> None:
    first, second = Tensor((8,), raw=b"a" * 32, offset=64), Tensor((8,), raw=b"b" * 32, offset=0)
    content = gguf_bytes({}, {"first": first, "second": second}) + bytes(32)
    model = open_bytes(tmp_path, content)
    assert list(model.tensors) == ["first", "second"]
    assert model.tensors["first"].offset - model.tensors["second"].offset == 64
    assert bytes(model.data("second")[0]) == b"a" * 32  # the bytes lie in the order of the table here


def test_a_tensor_that_is_not_there(tmp_path: Path) -> None:
    model = open_bytes(tmp_path, gguf_bytes({}, ONE_TENSOR))
    with pytest.raises(CheckpointError, match=r"model\.gguf: the model has no tensor 'v'"):
        model.data("v")


def test_a_type_that_cannot_be_decoded_names_file_and_tensor(tmp_path: Path) -> None:
    model = open_bytes(tmp_path, gguf_bytes({}, {"w": Tensor((1, 128), GGMLType.Q1_0)}))
    with pytest.raises(CheckpointError, match=r"model\.gguf: tensor 'w': type Q1_0 cannot be decoded"):
        model.dequantize("w")


def header(num_tensors: int, num_metadata: int, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_metadata) + rest


def entry(key: str, type_id: int, rest: bytes) -> bytes:
    return header(0, 1, string(key) + struct.pack("<I", type_id) + rest)


def tensor(dims: tuple[int, ...], ggml_type: int = 0, offset: int = 0, num_dims: int | None = None) -> bytes:
    table = struct.pack("<I", len(dims) if num_dims is None else num_dims)
    table += struct.pack(f"<{len(dims)}QIQ", *dims, ggml_type, offset)
    return header(1, 0, string("w") + table + bytes(256))


GOOD = gguf_bytes({"a": 1}, ONE_TENSOR)
TWICE = string("a") + struct.pack("<IB", 0, 1)
BROKEN = {
    "empty": (b"", "the file is empty, not a GGUF file"),
    "text": (b"hello, I am no model", r"not a GGUF file: it starts with b'hell' instead of b'GGUF'"),
    "short": (b"GG", "not a GGUF file"),
    "no version": (b"GGUF\x03", r"it ends at 5 bytes, the version needs 8"),
    "reversed magic": (b"FUGG" + bytes(40), "big-endian GGUF files are not supported"),
    "big-endian": (gguf_bytes({}, version=3, order=">"), "a big-endian GGUF file"),
    "version 1": (gguf_bytes({}, version=1), "GGUF version 1 is not supported"),
    "version 99": (gguf_bytes({}, version=99), "GGUF version 99 is not supported; 2 and 3 are"),
    "2^63 tensors": (header(2**63, 0), "the header claims 9223372036854775808 tensors, more than a file of 24 bytes"),
    "2^63 entries": (header(0, 2**63), "the header claims 9223372036854775808 metadata entries"),
    "long key": (header(0, 1, struct.pack("<Q", 2**60) + bytes(60)), "the key of metadata entry 0 claims a string of"),
    "empty key": (header(0, 1, string("") + bytes(60)), "the key of metadata entry 0 has 0 characters"),
    "key twice": (header(0, 2, TWICE * 2), "metadata key 'a' appears twice"),
    "value type": (entry("a", 13, bytes(60)), r"metadata key 'a' has value type 13, which GGUF does not define"),
    "string of 2^40": (entry("a", STRING, struct.pack("<Q", 2**40) + bytes(64)), "claims a string of 1099511627776"),
    "string past the end": (entry("a", STRING, struct.pack("<Q", 500) + b"xy"), r"metadata key 'a' needs \d+"),
    "array of 2^60": (entry("a", 9, struct.pack("<IQ", 0, 2**60) + bytes(64)), "'a' claims 1152921504606846976 elem"),
    "array past the end": (entry("a", 9, struct.pack("<IQ", 5, 500)), r"the file is truncated or damaged: it ends at"),
    "strings past the end": (entry("a", 9, struct.pack("<IQ", STRING, 9)), r"metadata key 'a' needs \d+"),
    "arrays past the end": (entry("a", 9, struct.pack("<IQ", 9, 9)), r"metadata key 'a' needs \d+"),
    "deep arrays": (entry("a", 9, struct.pack("<IQ", 9, 1) * 9), "metadata key 'a' nests arrays more than 4 deep"),
    "no value": (entry("a", 10, b"\0"), "metadata key 'a' needs 45"),
    "alignment 0": (gguf_bytes({"general.alignment": 0}), "general.alignment is 0; it must be a power of two"),
    "alignment 3": (gguf_bytes({"general.alignment": 3}), "general.alignment is 3;"),
    "alignment 2^30": (gguf_bytes({}) [:16] + struct.pack("<Q", 1) + string("general.alignment")
                       + struct.pack("<II", 4, 1 << 30), "general.alignment is 1073741824;"),
    "alignment text": (gguf_bytes({"general.alignment": "32"}), "general.alignment is '32';"),
    "no dims": (tensor(()), "tensor 'w' has 0 dimensions; 1 to 4 are allowed"),
    "5 dims": (tensor((1,) * 5), "tensor 'w' has 5 dimensions"),
    "2^31 dims": (tensor((), num_dims=2**31), "tensor 'w' has 2147483648 dimensions"),
    "zero dim": (tensor((4, 0)), r"tensor 'w' has shape \[0, 4\]; every dimension must be at least 1"),
    "huge dims": (tensor((2**63, 2**63)), r"the file ends at \d+ bytes, tensor 'w' needs 34028\d+"),
    "type 200": (tensor((4,), 200), "tensor 'w' has type id 200, which is unknown to this reader"),
    "type 4": (tensor((4,), 4), "tensor 'w' has type id 4, Q4_2, which ggml has retired"),
    "type 31": (tensor((4,), 31), "Q4_0_4_4, a repacked type that ggml has removed"),
    "ragged row": (tensor((100, 2), GGMLType.Q4_K), "rows of 100 elements; type Q4_K needs a multiple of 256"),
    "crooked offset": (tensor((4,), offset=8), "tensor 'w' starts at offset 8, not a multiple of 32"),
    "offset past the end": (tensor((4,), offset=2**63), r"the file ends at \d+ bytes, tensor 'w' needs 9223372036854"),
    "unnamed tensor": (header(1, 0, string("") + bytes(64)), "the name of tensor 0 has 0 characters"),
    "tensor twice": (header(2, 0, (string("w") + struct.pack("<IQIQ", 1, 1, 0, 0))
                            + (string("w") + struct.pack("<IQIQ", 1, 1, 0, 32)) + bytes(128)),
                     "tensor 'w' appears twice"),
    "overlap": (gguf_bytes({}, {"v": Tensor((16,)), "w": Tensor((8,), offset=32)}), "tensors 'v' and 'w' overlap"),
    "truncated": (GOOD[:-1], rf"the file ends at {len(GOOD) - 1} bytes, tensor 'w' needs {len(GOOD)}"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_named(name: str, tmp_path: Path) -> None:
    content, message = BROKEN[name]
    path = write(tmp_path, content)
    with pytest.raises(CheckpointError, match=message) as caught:
        GGUFFile.open(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    for length in range(len(GOOD)):
        with pytest.raises(CheckpointError):
            open_bytes(tmp_path, GOOD[:length])


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.gguf: cannot be opened: No such file"):
        GGUFFile.open(tmp_path / "none.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointError, match=r"pipe\.gguf: not a regular file"):
        GGUFFile.open(tmp_path / "pipe.gguf")

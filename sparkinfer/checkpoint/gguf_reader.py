"""Parses the header of one GGUF file (version 2 or 3, little-endian): metadata and tensor table.

Layout: magic u32 | version u32 | num_tensors u64 | num_metadata u64
        | metadata: key string, type u32, value ...
        | tensors: name string, num_dims u32, dims u64 ... (fastest first), type u32, offset u64
        | padding to `general.alignment` | tensor data, offsets relative to here
Knows one file; how several make a model is the business of shards.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkinfer.checkpoint.cursor import Cursor
from sparkinfer.checkpoint.ggml_type import UNSUPPORTED_TYPE_NAMES, GGMLType
from sparkinfer.errors import CheckpointError

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4
MAX_KEY_CHARACTERS = 65535  # the format's own limit
MAX_NAME_CHARACTERS = 255   # ggml itself stops at 63
_MIN_METADATA_BYTES = 8 + 1 + 4 + 1      # key length, one letter, type, one byte
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. Invariant: the range is inside its file, and overlaps no other tensor's."""

    name: str
    shape: tuple[int, ...]  # rows first, the contiguous dimension last
    ggml_type: GGMLType
    offset: int             # bytes from the start of its file
    num_bytes: int
    shard: int              # index into the model's files

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Shard:
    """One mapped file, parsed and checked."""

    path: Path
    buffer: mmap.mmap
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_shard(path: Path, index: int = 0) -> Shard:
    """Map the file at `path` and parse its header; raises CheckpointError naming the file and the part."""
    cursor = Cursor(_map(path), path)
    _check_magic(cursor)
    num_tensors, num_metadata = cursor.u64("the tensor count"), cursor.u64("the metadata count")
    _check_count(cursor, num_tensors, _MIN_TENSOR_BYTES, "tensors")
    _check_count(cursor, num_metadata, _MIN_METADATA_BYTES, "metadata entries")
    metadata = _read_metadata(cursor, num_metadata)
    alignment = _alignment(cursor, metadata)
    tensors = [_read_tensor(cursor, number, index) for number in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    return Shard(path, cursor.buffer, metadata, _place(cursor, tensors, data_start, alignment))


def _map(path: Path) -> mmap.mmap:
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: not a regular file")
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                raise CheckpointError(f"{path}: the file is empty, not a GGUF file")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened: {error.strerror or error}") from error


def _check_magic(cursor: Cursor) -> None:
    magic = cursor.buffer[:4]
    if magic == MAGIC[::-1]:
        cursor.fail("the magic bytes are reversed: big-endian GGUF files are not supported")
    if magic != MAGIC:
        cursor.fail(f"not a GGUF file: it starts with {magic!r} instead of {MAGIC!r}")
    cursor.position = len(MAGIC)
    version = cursor.u32("the version")
    if version in SUPPORTED_VERSIONS:
        return
    if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, *SUPPORTED_VERSIONS):
        cursor.fail("a big-endian GGUF file; only little-endian files are supported")
    if version == 1:
        cursor.fail("GGUF version 1 is not supported (2 and 3 are); convert the file again with a current converter")
    cursor.fail(f"GGUF version {version} is not supported; 2 and 3 are")


def _check_count(cursor: Cursor, count: int, min_bytes: int, what: str) -> None:
    if count * min_bytes > cursor.size - cursor.position:
        cursor.fail(f"the header claims {count} {what}, more than a file of {cursor.size} bytes can hold")


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for number in range(count):
        key = cursor.name(f"the key of metadata entry {number}", MAX_KEY_CHARACTERS)
        if key in metadata:
            cursor.fail(f"metadata key {key!r} appears twice")
        metadata[key] = cursor.value(f"metadata key {key!r}")
    return metadata


def _alignment(cursor: Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment!r}; it must be a power of two from 1 to {MAX_ALIGNMENT}")
    return int(alignment)


def _read_tensor(cursor: Cursor, number: int, shard: int) -> TensorInfo:
    """One entry of the tensor table; `offset` is still relative to the data."""
    name = cursor.name(f"the name of tensor {number}", MAX_NAME_CHARACTERS)
    part = f"the table entry of tensor {name!r}"
    num_dims = cursor.u32(part)
    if not 1 <= num_dims <= MAX_DIMS:
        cursor.fail(f"tensor {name!r} has {num_dims} dimensions; 1 to {MAX_DIMS} are allowed")
    shape = tuple(cursor.u64(part) for _ in range(num_dims))[::-1]
    ggml_type = _tensor_type(cursor, name, cursor.u32(part))
    offset = cursor.u64(part)
    if 0 in shape:
        cursor.fail(f"tensor {name!r} has shape {list(shape)}; every dimension must be at least 1")
    if shape[-1] % ggml_type.block_size:
        cursor.fail(
            f"tensor {name!r} has rows of {shape[-1]} elements; type {ggml_type.name} needs a multiple of "
            f"{ggml_type.block_size}"
        )
    num_bytes = math.prod(shape[:-1]) * ggml_type.row_bytes(shape[-1])
    return TensorInfo(name, shape, ggml_type, offset, num_bytes, shard)


def _tensor_type(cursor: Cursor, name: str, type_id: int) -> GGMLType:
    try:
        return GGMLType(type_id)
    except ValueError:
        known = UNSUPPORTED_TYPE_NAMES.get(type_id, "which is unknown to this reader")
        cursor.fail(f"tensor {name!r} has type id {type_id}, {known}")


def _place(cursor: Cursor, tensors: list[TensorInfo], data_start: int, alignment: int) -> dict[str, TensorInfo]:
    """Make offsets absolute; check that each tensor is aligned, inside the file, and alone where it lies."""
    placed: dict[str, TensorInfo] = {}
    end, previous = data_start, ""
    for info in sorted(tensors, key=lambda tensor: tensor.offset):
        offset = data_start + info.offset
        if info.offset % alignment:
            cursor.fail(f"tensor {info.name!r} starts at offset {info.offset}, not a multiple of {alignment}")
        if offset + info.num_bytes > cursor.size:
            cursor.fail(f"the file ends at {cursor.size} bytes, tensor {info.name!r} needs {offset + info.num_bytes}")
        if offset < end:
            cursor.fail(f"tensors {previous!r} and {info.name!r} overlap")
        if info.name in placed:
            cursor.fail(f"tensor {info.name!r} appears twice")
        placed[info.name] = TensorInfo(info.name, info.shape, info.ggml_type, offset, info.num_bytes, info.shard)
        end, previous = offset + info.num_bytes, info.name
    return {info.name: placed[info.name] for info in tensors}

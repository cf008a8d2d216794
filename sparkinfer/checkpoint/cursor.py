"""A bounds-checked reading position in a mapped GGUF file, and the value types of its metadata.

Every length is compared with what is left of the file before anything is allocated. Knows nothing of tensors.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from sparkinfer.errors import CheckpointError

MAX_ARRAY_ELEMENTS = 1 << 24  # the largest public vocabulary lists half a million merges
MAX_STRING_BYTES = 1 << 26    # a chat template takes tens of kilobytes
MAX_NESTING = 4               # arrays within arrays; no public file nests at all

STRING, ARRAY = 8, 9
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """Reads forward through one file; `part` arguments name what is being read, for the error."""

    def __init__(self, buffer: mmap.mmap, path: Path) -> None:
        self.buffer = buffer
        self.path = path
        self.size = len(buffer)
        self.position = 0

    def fail(self, message: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: {message}")

    def need(self, num_bytes: int, part: str) -> None:
        """Check that `num_bytes` more are there."""
        if num_bytes > self.size - self.position:
            self.fail(
                f"the file is truncated or damaged: it ends at {self.size} bytes, "
                f"{part} needs {self.position + num_bytes}"
            )

    def u32(self, part: str) -> int:
        return self._integer(_U32, part)

    def u64(self, part: str) -> int:
        return self._integer(_U64, part)

    def _integer(self, layout: struct.Struct, part: str) -> int:
        self.need(layout.size, part)
        value: int = layout.unpack_from(self.buffer, self.position)[0]
        self.position += layout.size
        return value

    def string(self, part: str) -> str:
        """A length and that many bytes of UTF-8; bytes that are not UTF-8 become lone surrogates."""
        return self._strings(1, part)[0]

    def name(self, part: str, max_characters: int) -> str:
        """A string that identifies something: neither empty nor longer than `max_characters`."""
        text = self.string(part)
        if not 0 < len(text) <= max_characters:
            self.fail(f"{part} has {len(text)} characters; 1 to {max_characters} are allowed")
        return text

    def value(self, part: str) -> Any:
        """A type id and a value of that type."""
        return self._value_of_type(self.u32(f"the type of {part}"), part, depth=0)

    def _value_of_type(self, type_id: int, part: str, depth: int) -> Any:
        if type_id == STRING:
            return self.string(part)
        if type_id == ARRAY:
            return self._array(part, depth)
        return self._numbers(type_id, 1, part)[0]

    def _array(self, part: str, depth: int) -> list[Any]:
        if depth == MAX_NESTING:
            self.fail(f"{part} nests arrays more than {MAX_NESTING} deep")
        type_id = self.u32(f"the element type of {part}")
        count = self.u64(f"the length of {part}")
        if count > MAX_ARRAY_ELEMENTS:
            self.fail(f"{part} claims {count} elements, more than the {MAX_ARRAY_ELEMENTS} allowed")
        if type_id == STRING:
            self.need(count * _U64.size, part)
            return self._strings(count, part)
        if type_id == ARRAY:
            self.need(count * (_U32.size + _U64.size), part)
            return [self._array(part, depth + 1) for _ in range(count)]
        return self._numbers(type_id, count, part)

    def _numbers(self, type_id: int, count: int, part: str) -> list[Any]:
        dtype = _NUMBERS.get(type_id)
        if dtype is None:
            self.fail(f"{part} has value type {type_id}, which GGUF does not define (0 to 12)")
        self.need(count * dtype.itemsize, part)
        raw = self.buffer[self.position : self.position + count * dtype.itemsize]
        self.position += len(raw)
        if dtype.kind == "b":  # any non-zero byte is true, and numpy must not see other bit patterns as bool
            return [byte != 0 for byte in raw]
        numbers: list[Any] = np.frombuffer(raw, dtype).tolist()
        return numbers

    def _strings(self, count: int, part: str) -> list[str]:
        """The loop that a vocabulary of 250,000 tokens and as many merges spends its time in."""
        buffer, size, position, unpack = self.buffer, self.size, self.position, _U64.unpack_from
        strings: list[str] = []
        for _ in range(count):
            start = position + 8
            if start > size:
                self.position = position
                self.need(8, part)
            position = start + unpack(buffer, position)[0]
            if position > size or position - start > MAX_STRING_BYTES:
                self._refuse_string(start, position - start, part)
            raw = buffer[start:position]
            try:
                strings.append(raw.decode())
            except UnicodeDecodeError:
                strings.append(raw.decode(errors="surrogateescape"))
        self.position = position
        return strings

    def _refuse_string(self, start: int, length: int, part: str) -> NoReturn:
        self.position = start
        if length > MAX_STRING_BYTES:
            self.fail(f"{part} claims a string of {length} bytes, more than the {MAX_STRING_BYTES} allowed")
        self.need(length, part)
        raise AssertionError("a string was refused that fits")

"""What a text worker and its grammar builders say to each other, over the builder's standard input and output.

Owns the frame, the same both ways: the length as 4 bytes, little-endian, then one record in msgpack. A GrammarSpec or
a CallCheck goes in, a BuilderReply comes out behind its Workings, one for each in the same order; an empty frame comes
first, when the builder is ready. Knows no grammar.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec

LENGTH = struct.Struct("<I")


class Built(msgspec.Struct, frozen=True, tag="built"):
    """A grammar that compiles."""

    lark: str
    approximations: tuple[str, ...]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why there is none: a RequestError."""

    status: int
    message: str
    param: str | None
    code: str | None


class Working(msgspec.Struct, frozen=True, tag="working"):
    """What the builder has begun with; any number of them come before the reply."""

    path: str                         # in the client's request


BuilderReply = Built | Refused


def read_frame(file: BinaryIO) -> bytes | None:
    """The next frame, None at the end."""
    header = file.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(header)
    return file.read(length)

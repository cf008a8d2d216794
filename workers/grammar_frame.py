"""What a text worker and its grammar builders say to each other, over the builder's standard input and output.

Owns the frame, the same both ways: the length as 4 bytes, little-endian, then one record in msgpack. An Order goes in,
its BuilderReply comes out behind any number of Workings and Spents; an empty frame comes first, when the builder is
ready. An empty frame that goes in gives up the job at hand, if there is one. Knows no grammar.
"""

from __future__ import annotations

import os
import struct

import msgspec

from sparkinfer.grammar.output_grammar import FreeText

LENGTH = struct.Struct("<I")


class Order(msgspec.Struct, frozen=True):
    """A job."""

    payload: bytes                    # a GrammarSpec or a CallCheck in msgpack
    is_slow: bool                     # others come first, on the processor too


class Built(msgspec.Struct, frozen=True, tag="built"):
    """A grammar that compiles."""

    lark: str
    approximations: tuple[str, ...]
    free_text: FreeText | None = None


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why there is none: a RequestError."""

    status: int
    message: str
    param: str | None
    code: str | None


class Working(msgspec.Struct, frozen=True, tag="working"):
    """What the builder has begun with; any number of them come before the reply."""

    path: str                         # in the client's request


class Spent(msgspec.Struct, frozen=True, tag="spent"):
    """The job goes on and has taken this much; every 50 ms of a processor's time, and once a second at least."""

    cpu_s: float


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The job was given up, or the process that had it died of it."""


BuilderReply = Built | Refused | Lost
BuilderNews = Working | Spent


def read_frame(fd: int) -> bytes | None:
    """The next frame, None at the end."""
    header = _read(fd, LENGTH.size)
    return None if header is None else _read(fd, LENGTH.unpack(header)[0])


def write_frame(fd: int, payload: bytes) -> None:
    """One frame, whole. Raises BrokenPipeError when nobody reads any more."""
    rest = memoryview(LENGTH.pack(len(payload)) + payload)
    while rest:
        rest = rest[os.write(fd, rest):]


def _read(fd: int, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = os.read(fd, count - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)

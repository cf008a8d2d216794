"""Records to msgpack and back, one decoder per inbox and per list of events.

Owns the encoder and the decoders, made once per process; never knows a socket or a ring. Decoding is strict: an
unknown tag, a missing field or a wrong type is a bug of ours and raises MalformedMessage.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import msgspec

from ipc.messages import GpuInbox, HttpInbox, SequenceEvent, TextEvent, TextInbox

MessageT = TypeVar("MessageT")

ENCODER: Final = msgspec.msgpack.Encoder()
_ANY_DECODER: Final = msgspec.msgpack.Decoder()


class MalformedMessage(Exception):
    """Bytes that are no message of the expected kind; names the kind, the message's tag and what is wrong."""


class MessageDecoder(Generic[MessageT]):
    """A reusable strict decoder; `name` is what errors call the expected kind."""

    def __init__(self, name: str, message_type: Any) -> None:
        self.name = name
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(message_type)

    def decode(self, payload: bytes | memoryview) -> MessageT:
        """The message; raises MalformedMessage."""
        try:
            return self._decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise MalformedMessage(f"{self.name}: malformed {_describe(payload)}: {error}") from error


def _describe(payload: bytes | memoryview) -> str:
    """The tag of a message that could not be decoded, as far as it can be told."""
    try:
        content = _ANY_DECODER.decode(payload)
    except msgspec.DecodeError:
        return f"message of {len(payload)} bytes"
    tag = content.get("type") if isinstance(content, dict) else None
    return f"message {tag!r}" if isinstance(tag, str) else f"message of {len(payload)} bytes"


HTTP_INBOX: Final[MessageDecoder[HttpInbox]] = MessageDecoder("HttpInbox", HttpInbox)
TEXT_INBOX: Final[MessageDecoder[TextInbox]] = MessageDecoder("TextInbox", TextInbox)
GPU_INBOX: Final[MessageDecoder[GpuInbox]] = MessageDecoder("GpuInbox", GpuInbox)
SEQUENCE_EVENTS: Final[MessageDecoder[list[SequenceEvent]]] = MessageDecoder("SequenceEvents", list[SequenceEvent])
TEXT_EVENTS: Final[MessageDecoder[list[TextEvent]]] = MessageDecoder("TextEvents", list[TextEvent])


def encode(message: Any) -> bytes:
    """msgpack of a record, or of a list of events, from ipc.messages."""
    return ENCODER.encode(message)

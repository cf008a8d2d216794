"""Events on their way to an http worker: what is larger than the ring goes in parts, or ends with an error."""

from __future__ import annotations

import msgspec
import pytest

from ipc.messages import Delta, Failed, TextEvent
from sparkinfer.errors import RequestError
from sparkinfer.request import RequestId
from workers.text_outlets import HttpOutlets, failed

RING_BYTES = 10_000


class Writer:
    """A ring that takes frames up to RING_BYTES."""

    overflowed = False

    def __init__(self) -> None:
        self.frames: list[list[TextEvent]] = []

    def push(self, frame: bytes) -> None:
        if len(frame) > RING_BYTES:
            raise ValueError("too large")
        self.frames.append(msgspec.msgpack.decode(frame, type=list[TextEvent]))

    def ring(self) -> None:
        """Nobody sleeps."""


def delta(number: int, size: int) -> Delta:
    return Delta(RequestId(number), 0, "x" * size, "", 1)


def published(events: list[TextEvent]) -> list[list[TextEvent]]:
    writer = Writer()
    outlets = HttpOutlets({"http-0": writer})  # type: ignore[dict-item]
    for event in events:
        outlets.emit(0, event)
    assert outlets.publish() == []
    return writer.frames


@pytest.mark.parametrize("sizes", [[10] * 5, [4000] * 9, [1, 9000, 1, 9000, 9000, 1]])
def test_everything_arrives_in_order(sizes: list[int]) -> None:
    events = [delta(number, size) for number, size in enumerate(sizes)]
    frames = published(events)
    assert [event for frame in frames for event in frame] == events
    assert (len(frames) == 1) == (sum(sizes) < RING_BYTES)


def test_only_the_event_that_fits_no_frame_is_an_error() -> None:
    frames = published([delta(1, 10), delta(2, 20_000), delta(3, 10)])
    first, second, third = [event for frame in frames for event in frame]
    assert (first, third) == (delta(1, 10), delta(3, 10))
    assert isinstance(second, Failed)
    assert (second.request_id, second.status, second.code) == (2, 413, "answer_too_large")


def test_the_numbers_of_an_error_go_with_it() -> None:
    error = RequestError(400, "no", param="prompt", code="too_long", details={"n_ctx": 5})
    assert failed(RequestId(1), error) == Failed(RequestId(1), 400, "no", "prompt", "too_long", {"n_ctx": 5})

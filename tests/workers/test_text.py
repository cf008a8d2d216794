"""The text worker's boundary: whatever encoding a prompt raises, its client gets an answer."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ipc.messages import Count, Failed, Submit, TextEvent
from sparkinfer.config import Config
from sparkinfer.errors import RequestError
from sparkinfer.request import Request, RequestId, TextPrompt
from sparkinfer.sampling_params import SamplingParams
from workers.text import TextWorker

PROMPT = TextPrompt(text="x")


class Panic(BaseException):
    """As pyo3's PanicException: not an Exception."""


class Writer:
    """A ring's writing end that keeps what it is given."""

    overflowed = False

    def __init__(self) -> None:
        self.events: list[TextEvent] = []

    def push(self, frame: bytes) -> None:
        self.events += msgspec.msgpack.decode(frame, type=list[TextEvent])

    def ring(self) -> None:
        """Nobody sleeps."""


class BrokenEncoder:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def encode_request(self, *_: Any) -> Any:
        raise self._error

    def encode_with_text(self, *_: Any) -> Any:
        raise self._error

    tokenizer = None


def events_of(error: BaseException, message: Any) -> list[TextEvent]:
    """What a worker whose encoder raises `error` answers to `message`; no request may stay open."""
    async def run() -> list[TextEvent]:
        writer, gauges = Writer(), {}
        peers = SimpleNamespace(
            is_dead=lambda *_: False, outbox=lambda _: SimpleNamespace(send=lambda _: True)
        )
        status = SimpleNamespace(set_gauge=gauges.__setitem__)
        context: Any = SimpleNamespace(
            writers={"http-0": writer}, peers=peers, status=status, config=Config(), spec=SimpleNamespace(index=0),
            mask_table=SimpleNamespace(clear=lambda _: None),
        )  # fmt: skip
        encoder: Any = BrokenEncoder(error)
        worker = TextWorker(context, encoder)
        worker.on_messages([message])
        while worker._encoding:
            await asyncio.sleep(0)
        assert set(gauges.values()) == {0}
        return writer.events

    return asyncio.run(run())


def submit() -> Submit:
    request = Request(request_id=RequestId(7), prompt=PROMPT, sampling=SamplingParams(max_tokens=1))
    return Submit(request=request, reply_to=0, generation=1)


def count() -> Count:
    return Count(request_id=RequestId(7), prompt=PROMPT, reply_to=0)


@pytest.mark.parametrize("message", [submit(), count()], ids=["generation", "count"])
@pytest.mark.parametrize("error", [TypeError("int is no str"), RecursionError(), Panic("index out of bounds")])
def test_an_unexpected_error_is_answered_with_500_and_logged(
    error: BaseException, message: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        events = events_of(error, message)
    assert [(type(event), event.request_id, event.status) for event in events] == [(Failed, 7, 500)]
    assert caplog.records[0].exc_info[1] is error


@pytest.mark.parametrize("message", [submit(), count()], ids=["generation", "count"])
def test_a_refusal_keeps_its_own_status(message: Any, caplog: pytest.LogCaptureFixture) -> None:
    events = events_of(RequestError(400, "no", param="messages"), message)
    assert [(event.status, event.message, event.param) for event in events] == [(400, "no", "messages")]
    assert not caplog.records

"""A prediction of an LM Studio SDK: a channel of its WebSocket in the place of an HTTP connection.

To the rest of this worker it is a request like any other: counted, logged, drained and aborted as one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

from sparkinfer.api.generation import Generation, MakeReply, NewRequestId
from sparkinfer.api.lmstudio.sdk_reply import PredictionReply
from sparkinfer.api.lmstudio.sdk_request import FIELD_NAMES, parse_prediction
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.schema import Object
from sparkinfer.api.sse import encode_json
from workers.http_exchange import Exchange, Headers
from workers.http_generations import CLIENT_GONE, Generations
from workers.http_socket import Socket


class Channel:
    """What a prediction takes for its connection: the answer goes out as messages, and a message cancels it."""

    def __init__(self, socket: Socket, channel_id: int) -> None:
        """Made where the message that asks for it has just been received."""
        self.num_asked_bytes = socket.num_received_bytes
        self._socket = socket
        self._cancelled = asyncio.Event()
        self._id = channel_id
        self._head = f'{{"type":"channelSend","channelId":{channel_id},"message":'

    def cancel(self) -> None:
        """The client wants no more."""
        self._cancelled.set()

    def send_bytes(self, data: bytes) -> None:
        """JSON objects, one a line."""
        for line in data.splitlines():
            self._socket.send(f"{self._head}{line.decode()}}}")

    def send(self, message: Object) -> None:
        self.send_bytes(encode_json(message))

    def close(self) -> None:
        self._socket.send(f'{{"type":"channelClose","channelId":{self._id}}}')

    async def client_disconnect(self) -> None:
        await self._cancelled.wait()

    def response_stream(self, status: int, headers: Headers) -> Channel:
        return self

    def response_bytes(self, status: int, headers: Headers, body: bytes) -> None:
        raise AssertionError("predictions are streamed")

    def response_empty(self, status: int, headers: Headers) -> None:
        raise AssertionError("predictions are streamed")

    async def __call__(self) -> bytes:
        raise AssertionError("the channel's creation brought the body")

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise AssertionError("the channel's creation brought the body")


async def predict(channel: Channel, exchange: Exchange, generations: Generations) -> int:
    """Answer through `channel`, whose creation parameter is the body of `exchange`; the status, as for the log.

    RequestError where nothing was begun.
    """
    replies: list[PredictionReply] = []

    def plan(body: Object, info: ModelInfo, new_request_id: NewRequestId) -> tuple[Generation, MakeReply]:
        prediction = parse_prediction(body, info, new_request_id)
        make_reply = functools.partial(PredictionReply, info=info, prediction=prediction)

        def remember(reply_id: str, created: int) -> PredictionReply:
            replies.append(make_reply(reply_id, created))
            return replies[-1]

        return prediction.generation, remember

    await generations.run(exchange, plan, names=FIELD_NAMES)
    if exchange.sent_status == CLIENT_GONE:
        channel.send_bytes(replies[-1].stopped())
    return exchange.sent_status


def new_exchange(socket: Socket, channel: Channel, path: str, client_id: int, body: dict[str, Any]) -> Exchange:
    """The prediction as the routes know requests."""
    exchange = Exchange(socket.scope, channel, path, 0, socket.bodies, body)
    exchange.num_body_bytes = channel.num_asked_bytes
    exchange.client_id = client_id
    return exchange

"""The WebSockets of LM Studio's SDKs: one per namespace, remote calls and channels side by side on each.

    client: {"authVersion": 1, "clientIdentifier", "clientPasskey"}                server: {"success": true}
    client: {"type": "rpcCall", "endpoint", "callId", "parameter"}                 server: rpcResult or rpcError
    client: {"type": "channelCreate", "endpoint", "channelId", "creationParameter"}
    both:   {"type": "channelSend", "channelId", "message"}                        server: channelClose, channelError

Owns what is open on a socket; what calls and predictions do is the business of their modules.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from sparkinfer.api.lmstudio.sdk_documents import instance_facts
from sparkinfer.api.model_facts import check_model_name
from sparkinfer.api.schema import as_int, as_str, read_object, read_str
from sparkinfer.api.sse import encode_json
from sparkinfer.errors import RequestError
from workers.http_access_log import AccessLog
from workers.http_api_keys import ApiKeys
from workers.http_exchange import Scope
from workers.http_front_door import request_id_of
from workers.http_generations import Generations
from workers.http_lmstudio_calls import LmStudioCalls
from workers.http_lmstudio_channel import Channel, new_exchange, predict
from workers.http_socket import Socket

log = logging.getLogger("http")

MAX_OPEN = 256  # calls and channels of one socket
ID_MAX = 2**53
HELLO_S = 30.0  # how long a client may take to introduce itself
CLOSE_S = 1.0  # how long the last messages may take to leave


class LmStudioSockets:
    """What all sockets share."""

    def __init__(self, generations: Generations, calls: LmStudioCalls, keys: ApiKeys, access_log: AccessLog) -> None:
        self.generations = generations
        self.calls = calls
        self.access_log = access_log
        self._keys = keys

    async def serve(self, socket: Socket, namespace: str) -> None:
        """Serve one socket to its end."""
        session = _Session(self, socket, namespace)
        reading = asyncio.ensure_future(session.run())
        writing = asyncio.ensure_future(socket.write())
        cut_off = asyncio.ensure_future(socket.cut_off.wait())
        leaving = asyncio.ensure_future(socket.is_leaving.wait())
        parts = (reading, writing, cut_off, leaving, session.failed)
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            await session.end()
            socket.close()
            if not socket.cut_off.is_set():
                await asyncio.wait((writing,), timeout=CLOSE_S)
            for part in parts:
                if part.done():
                    part.result()
        finally:
            for part in parts:
                part.cancel()

    def client_of(self, scope: Scope, hello: dict[str, Any]) -> int:
        """Which key the client has: in a header, or as the passkey of a token "sk-lm-IDENTIFIER:PASSKEY".

        RequestError 401 without a valid one.
        """
        name, passkey = read_str(hello, "clientIdentifier") or "", read_str(hello, "clientPasskey") or ""
        authorization = scope.headers.get("authorization", "")
        for given in (scope.headers.get("x-api-key", ""), passkey):
            try:
                return self._keys.check(authorization, given)
            except RequestError:
                continue
        return self._keys.check("", f"sk-lm-{name}:{passkey}")


class _Session:
    """One socket: its calls and channels."""

    def __init__(self, sockets: LmStudioSockets, socket: Socket, namespace: str) -> None:
        self._sockets = sockets
        self._socket = socket
        self._namespace = namespace
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # by a fault of ours
        self._client_id = 0
        self._channels: dict[int, Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Read until the client leaves, or says what cannot be understood."""
        try:
            async with asyncio.timeout(HELLO_S):
                hello = await self._socket.receive()
            if hello is None:
                return
            self._client_id = self._sockets.client_of(self._socket.scope, hello)
            self._send({"success": True})
            while (message := await self._socket.receive()) is not None:
                self._take(message)
        except TimeoutError:
            self._send({"success": False, "error": {"title": "No authentication arrived"}})
        except RequestError as error:
            if error.status == 401:
                self._send({"success": False, "error": self._sockets.calls.error(error)})
            else:
                self._send({"type": "communicationWarning", "warning": error.message})

    async def end(self) -> None:
        """Cancel everything that is open, and wait for it."""
        for channel in self._channels.values():
            channel.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _take(self, message: dict[str, Any]) -> None:
        kind = read_str(message, "type")
        if kind == "rpcCall":
            self._start(self._call(_id(message, "callId"), message))
        elif kind == "channelCreate":
            channel_id = _id(message, "channelId")
            if channel_id in self._channels:
                raise RequestError(400, f"channelId: {channel_id} is open already", param="channelId")
            created = self._channels[channel_id] = Channel(self._socket, channel_id)
            self._start(self._run_channel(channel_id, created, message))
        elif kind == "channelSend":
            channel = self._channels.get(_id(message, "channelId"))
            inner = read_object(message, "message") or {}
            if channel is not None and inner.get("type") == "cancel":
                channel.cancel()
        elif kind == "keepAlive":
            self._send({"type": "keepAliveAck"})

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)

    async def _call(self, call_id: int, message: dict[str, Any]) -> None:
        try:
            self._check_room()
            endpoint = as_str(message.get("endpoint"), "endpoint")
            parameter = read_object(message, "parameter") or {}
            result = await self._sockets.calls.call(self._namespace, endpoint, parameter)
        except RequestError as error:
            self._send({"type": "rpcError", "callId": call_id, "error": self._sockets.calls.error(error)})
        else:
            self._send({"type": "rpcResult", "callId": call_id, "result": result})

    async def _run_channel(self, channel_id: int, channel: Channel, message: dict[str, Any]) -> None:
        try:
            self._check_room()
            endpoint = as_str(message.get("endpoint"), "endpoint")
            parameter = dict(read_object(message, "creationParameter") or {})
            if (self._namespace, endpoint) == ("llm", "predict"):
                await self._predict(channel, parameter)
            else:
                self._get_model(channel, endpoint, parameter)
            channel.close()
        except RequestError as error:
            self._send({"type": "channelError", "channelId": channel_id, "error": self._sockets.calls.error(error)})
        finally:
            del self._channels[channel_id]

    async def _predict(self, channel: Channel, parameter: dict[str, Any]) -> None:
        exchange = new_exchange(self._socket, channel, f"/{self._namespace}/predict", self._client_id, parameter)
        exchange.request_id = request_id_of(self._socket.scope)
        status = 500
        try:
            status = await predict(channel, exchange, self._sockets.generations)
        except RequestError as error:
            status = error.status
            channel.send({"type": "error", "error": self._sockets.calls.error(error)})
        finally:
            self._sockets.access_log.write(exchange, status)

    def _get_model(self, channel: Channel, endpoint: str, parameter: dict[str, Any]) -> None:
        info = self._sockets.generations.accepting()
        if (self._namespace, endpoint) != ("llm", "getOrLoad"):
            raise RequestError(501, "this server has one model, and its operator chooses it")
        check_model_name(info, as_str(parameter.get("identifier"), "identifier"))
        channel.send({"type": "alreadyLoaded", "info": instance_facts(info)})

    def _check_room(self) -> None:
        if len(self._tasks) > MAX_OPEN:
            raise RequestError(429, f"More than {MAX_OPEN} calls and channels are open on this socket")

    def _send(self, message: dict[str, Any]) -> None:
        self._socket.send(encode_json(message).decode())


def _id(message: dict[str, Any], key: str) -> int:
    return as_int(message.get(key), key, 0, ID_MAX)

"""The WebSockets of LM Studio's SDKs at their edges: keys, origins, what is not understood, who does not read."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import httpx_ws
import lmstudio
import pytest

from ipc.messages import Delta, Started
from sparkinfer.config import ServerConfig
from tests.api.app_server import AppServer

HELLO = {"authVersion": 1, "clientIdentifier": "name", "clientPasskey": "secret"}
PREDICTION = {
    "type": "channelCreate", "endpoint": "predict", "channelId": 7,
    "creationParameter": {
        "modelSpecifier": {"type": "query", "query": {}},
        "history": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
    },
}  # fmt: skip


@contextlib.contextmanager
def connected(app: AppServer, path: str = "/llm", **headers: str) -> Iterator[httpx_ws.WebSocketSession]:
    with httpx_ws.connect_ws(f"ws://127.0.0.1:{app.port}{path}", headers=headers) as opened:
        yield opened


@contextlib.contextmanager
def introduced(app: AppServer) -> Iterator[httpx_ws.WebSocketSession]:
    while not app.pool.submitted.empty():
        app.pool.submitted.get_nowait()
    with connected(app) as opened:
        opened.send_json(HELLO)
        assert opened.receive_json(timeout=20) == {"success": True}
        yield opened


def test_the_greeting(http: httpx.Client) -> None:
    assert http.get("/lmstudio-greeting").json() == {"lmstudio": True}
    assert http.get("/llm").status_code == 404


def status_of(app: AppServer, path: str, **headers: str) -> int:
    with pytest.raises(httpx_ws.WebSocketUpgradeError) as error, connected(app, path, **headers):
        pass
    return int(error.value.response.status_code)


def test_only_known_paths_and_origins_are_opened(app: AppServer) -> None:
    assert status_of(app, "/other") == 404
    assert status_of(app, "/v1/chat/completions") == 404
    assert status_of(app, "/llm", Origin="https://example.com") == 403
    with connected(app, Origin="http://localhost:3000"):
        pass
    with AppServer(ServerConfig(allowed_hosts=("example.com",))) as strict:
        assert status_of(strict, "/llm") == 403


def test_keys() -> None:
    keys = ("secret", "sk-lm-abcd1234:passkey")
    with AppServer(ServerConfig(api_keys=keys)) as app:
        with introduced(app) as opened:
            opened.send_json({"type": "rpcCall", "endpoint": "listLoaded", "callId": 1})
            assert opened.receive_json(timeout=20)["result"][0]["identifier"] == "tiny"
        for hello, headers in (
            (HELLO | {"clientIdentifier": "abcd1234", "clientPasskey": "passkey"}, {}),
            (HELLO | {"clientPasskey": "x"}, {"Authorization": "Bearer secret"}),
            (HELLO | {"clientPasskey": "x"}, {"x-api-key": "secret"}),
        ):
            with connected(app, **headers) as opened:
                opened.send_json(hello)
                assert opened.receive_json(timeout=20) == {"success": True}
        with connected(app) as opened:
            opened.send_json(HELLO | {"clientPasskey": "wrong"})
            refusal = opened.receive_json(timeout=20)
            assert (refusal["success"], "API key" in refusal["error"]["title"]) == (False, True)
            with pytest.raises(httpx_ws.WebSocketDisconnect):
                opened.receive_text(timeout=20)
        with pytest.raises(lmstudio.LMStudioError), lmstudio.Client(f"127.0.0.1:{app.port}") as client:
            client.llm.list_loaded()


def test_the_key_is_the_client(app: AppServer) -> None:
    with AppServer(ServerConfig(api_keys=("secret",))) as keyed, introduced(keyed) as opened:
        opened.send_json(PREDICTION)
        assert keyed.pool.submitted.get(timeout=20).client_id > 0


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"type": "rpcCall"}', '{"type": "channelSend", "channelId": "x"}'])
def test_what_cannot_be_understood_ends_the_socket(app: AppServer, text: str) -> None:
    with introduced(app) as opened:
        opened.send_text(text)
        assert opened.receive_json(timeout=20)["type"] == "communicationWarning"
        with pytest.raises(httpx_ws.WebSocketDisconnect):
            opened.receive_text(timeout=20)


def test_a_message_that_is_too_large_ends_the_socket() -> None:
    with AppServer(ServerConfig(max_body_mib=1)) as app, introduced(app) as opened:
        opened.send_text('"' + "x" * (1 << 20) + '"')
        assert "larger" in opened.receive_json(timeout=20)["warning"]


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ({"type": "rpcCall", "endpoint": "nothing", "callId": 3}, ("rpcError", "nothing")),
        ({"type": "rpcCall", "endpoint": "tokenize", "callId": 3, "parameter": {"inputString": "a"}},
         ("rpcError", "specifier")),
        ({"type": "channelCreate", "endpoint": "nothing", "channelId": 3}, ("channelError", "operator")),
        ({"type": "channelCreate", "endpoint": "getOrLoad", "channelId": 3}, ("channelError", "identifier")),
    ],
)  # fmt: skip
def test_what_cannot_be_done_costs_its_own_call(app: AppServer, message: dict[str, Any], answer: Any) -> None:
    with introduced(app) as opened:
        opened.send_json(message)
        received = opened.receive_json(timeout=20)
        assert (received["type"], answer[1] in received["error"]["title"]) == (answer[0], True)
        opened.send_json({"type": "keepAlive"})
        assert opened.receive_json(timeout=20) == {"type": "keepAliveAck"}


def bad(**fields: Any) -> dict[str, Any]:
    return PREDICTION | {"creationParameter": PREDICTION["creationParameter"] | fields}


def history(*messages: dict[str, Any]) -> dict[str, Any]:
    return bad(history={"messages": list(messages)})


def setting(key: str, value: Any) -> dict[str, Any]:
    field = {"key": f"llm.prediction.{key}", "value": value}
    return bad(predictionConfigStack={"layers": [{"layerName": "apiOverride", "config": {"fields": [field]}}]})


CALLS = {"type": "toolCallRequest", "toolCallRequest": {"type": "function", "id": "a", "name": "f"}}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (bad(modelSpecifier=None), "modelSpecifier"),
        (bad(history=None), "history"),
        (history(), "history.messages"),
        (history({"role": "robot", "content": []}), "history.messages[0].role"),
        (history({"role": "user", "content": [{"type": "file"}]}), "history.messages[0].content[0]"),
        (history({"role": "user", "content": 5}), "history.messages[0].content"),
        (history({"role": "assistant", "content": [CALLS]}), "history.messages"),
        (history({"role": "assistant", "content": [CALLS, CALLS]}),
         "history.messages[0].content[1].toolCallRequest.id"),
        (history({"role": "assistant", "content": [CALLS]}, {"role": "user", "content": "x"}), "history.messages[1]"),
        (history({"role": "tool", "content": [{"type": "toolCallResult", "content": "x"}]}),
         "history.messages[0].content[0].toolCallId"),
        (setting("promptTemplate", {"type": "jinja"}), "promptTemplate"),
        (setting("structured", {"type": "xml"}), "structured.type"),
        (setting("tools", {"type": "toolArray", "tools": [{"type": "function", "function": {}}]}),
         "tools.tools[0].function.name"),
        (setting("stopStrings", [""]), "stopStrings[0]"),
        (setting("temperature", "hot"), "temperature"),
    ],
)  # fmt: skip
def test_refusals_name_the_part(app: AppServer, message: dict[str, Any], param: str) -> None:
    with introduced(app) as opened:
        opened.send_json(message)
        error = opened.receive_json(timeout=20)["message"]["error"]
        assert error["errorData"] == {"status": 400, "code": None, "param": param}
        assert opened.receive_json(timeout=20) == {"type": "channelClose", "channelId": 7}


def test_a_channel_that_is_open_cannot_be_opened(app: AppServer) -> None:
    app.pool.script = lambda r: [[Started(r.request_id, 1)], ...]
    with introduced(app) as opened:
        opened.send_json(PREDICTION)
        app.pool.submitted.get(timeout=20)
        opened.send_json(PREDICTION)
        kinds = [opened.receive_json(timeout=20)["type"] for _ in range(2)]
        assert "communicationWarning" in kinds
    app.pool.aborts.get(timeout=20)


def test_a_client_that_leaves_aborts_its_predictions(app: AppServer) -> None:
    app.pool.script = lambda r: [[Started(r.request_id, 1)], ...]
    with introduced(app) as opened:
        for channel_id in range(3):
            opened.send_json(PREDICTION | {"channelId": channel_id})
        requests = {app.pool.submitted.get(timeout=20).request_id for _ in range(3)}
    assert {app.pool.aborts.get(timeout=20) for _ in range(3)} == requests


def test_draining_refuses_predictions(app: AppServer) -> None:
    with introduced(app) as opened:
        app.generations.is_draining = True
        opened.send_json(PREDICTION)
        assert opened.receive_json(timeout=20)["message"]["error"]["errorData"]["status"] == 503


def frame(message: dict[str, Any]) -> bytes:
    """A masked text frame of less than 64 KiB, as clients send them; the mask is zero."""
    data = json.dumps(message).encode()
    return b"\x81" + struct.pack(">BH", 0x80 | 126, len(data)) + bytes(4) + data


def test_a_client_that_does_not_read_is_cut_off() -> None:
    def flood(request: Any) -> Iterator[list[Any]]:
        yield [Started(request.request_id, 1)]
        while True:
            yield [Delta(request.request_id, 0, "x" * 100_000, "", 1)]

    upgrade = b"GET /llm HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    upgrade += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    with AppServer(ServerConfig(max_unsent_kib=256)) as app:
        app.pool.script = flood
        with socket.create_connection(("127.0.0.1", app.port), timeout=20) as raw:
            raw.sendall(upgrade)
            assert raw.recv(4096).startswith(b"HTTP/1.1 101")
            raw.sendall(frame(HELLO) + frame(PREDICTION))
            request = app.pool.submitted.get(timeout=20)
            assert app.pool.aborts.get(timeout=60) == request.request_id
            with contextlib.suppress(ConnectionError):
                while raw.recv(1 << 20):  # to its end, which a server that went on would not send
                    pass


def test_the_messages_are_whole(app: AppServer) -> None:
    with introduced(app) as opened:
        opened.send_json(PREDICTION)
        received: list[dict[str, Any]] = []
        while not received or received[-1]["type"] != "channelClose":
            received.append(json.loads(opened.receive_text(timeout=20)))
    assert {message["channelId"] for message in received} == {7}
    kinds = [message["message"]["type"] for message in received[:-1]]
    assert kinds == ["promptProcessingProgress", *["fragment"] * 5, "success"]

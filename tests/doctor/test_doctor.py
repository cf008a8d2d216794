"""The doctor: a server that does everything passes, one that does not is told why, and nothing breaks the doctor."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ipc.messages import Delta, Failed, Started, TokenLogprob
from sparkinfer.config import ServerConfig
from sparkinfer.doctor.__main__ import CLIENTS, MAX_SILENT, main
from sparkinfer.doctor.chat_stream import check_chat_stream
from sparkinfer.doctor.session import shortened
from sparkinfer.doctor.sse_events import SseEvent
from sparkinfer.request import ChatPrompt, FinishReason, Request
from tests.api.app_server import INFO, AppServer, finished
from tests.api.scripts import says

COLOR = json.dumps({"color": "red"})


def able(request: Request) -> Any:
    """A model that calls when it must, keeps to a form, and has no room for a long prompt."""
    prompt = request.prompt
    if isinstance(prompt, ChatPrompt) and len(prompt.messages[-1].content or "") > 5 * INFO.max_model_len:
        sentence = f"This model's maximum context length is {INFO.max_model_len} tokens."
        details = {"n_prompt_tokens": 700, "n_ctx": INFO.max_model_len}
        return [[Failed(request.request_id, 400, sentence, "messages", "context_length_exceeded", details)]]
    if request.tool_policy.choice == "required":
        return says(("call", "call_1", "get_weather", '{"city": "Paris"}'))(request)
    if request.sampling.max_tokens == 1:
        return says(("content", "H"), reason=FinishReason.LENGTH)(request)
    if request.n > 1 or request.sampling.logprobs is not None:
        return choices(request)
    return says(("content", COLOR if request.output_format is not None else "Hello."))(request)


def choices(request: Request) -> Iterator[list[Any]]:
    entry = TokenLogprob(1, b"a", -0.1, [(1, b"a", -0.1), (2, b"b", -3.0)])
    yield [Started(request.request_id, 3)]
    yield [Delta(request.request_id, choice, "a", "", 1, [entry]) for choice in range(request.n)]
    yield [finished(request, choice) for choice in range(request.n)]


@pytest.fixture(scope="module")
def able_app() -> Iterator[AppServer]:
    with AppServer(ServerConfig(api_keys=("key",))) as app:
        app.pool.script = able
        yield app


@pytest.mark.parametrize("client", CLIENTS)
def test_our_server_passes(able_app: AppServer, capsys: pytest.CaptureFixture[str], client: str) -> None:
    code = main([able_app.url, "--key", "key", "--as", client])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert "FAIL" not in printed
    assert printed.count(" ok ") == len(CLIENTS[client])


def test_without_the_key_it_says_why(able_app: AppServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{able_app.url}/v1", "--as", "openai"]) == 1
    printed = capsys.readouterr().out
    assert "status 401" in printed
    assert "ok    GET /v1/models lists the model" in printed


class Odd(BaseHTTPRequestHandler):
    """Answers everything alike."""

    body = b"{}"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body if self.command != "HEAD" else b"")

    do_POST = do_OPTIONS = do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("body", [b"{}", b"[]", b"null", b"not JSON", b'{"data": [{}], "choices": [], "models": [3]}'])
def test_a_server_of_another_kind_fails_every_check_that_matters(
    capsys: pytest.CaptureFixture[str], body: bytes
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Odd,), {"body": body}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert main([f"http://127.0.0.1:{server.server_port}"]) == 1
    finally:
        server.shutdown()
        server.server_close()
    lines = capsys.readouterr().out.splitlines()
    passed = [line for line in lines if "  ok    " in line]
    assert passed == []
    assert len(lines) == 2 * sum(map(len, CLIENTS.values())) + 1


class Silent(socketserver.StreamRequestHandler):
    """Takes a request; sends `lines` for ever."""

    lines = b""

    def handle(self) -> None:
        self.rfile.readline()
        try:
            while not over.wait(0.02):
                self.wfile.write(self.lines)
        except ConnectionError:
            pass


over = threading.Event()
TRICKLE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: hi\n\n"


@pytest.mark.parametrize("lines", [b"", TRICKLE])
def test_a_server_that_does_not_come_to_an_end_is_given_up(capsys: pytest.CaptureFixture[str], lines: bytes) -> None:
    over.clear()
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), type("Handler", (Silent,), {"lines": lines}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert main([f"http://127.0.0.1:{server.server_address[1]}", "--timeout", "0.2"]) == 1
    finally:
        over.set()
        server.shutdown()
        server.server_close()
    printed = capsys.readouterr().out
    assert printed.count("no whole answer within 0.2 s") == MAX_SILENT
    assert "no more checks" in printed


@pytest.mark.parametrize("url", ["http://", "", "http://127.0.0.1:99999", "ftp://127.0.0.1", "http://a:b"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([url])
    assert ended.value.code == 2


def test_what_a_server_says_stays_on_its_line() -> None:
    assert shortened("<html>\n\x1b[2J  <body>\r\n") == "<html> [2J <body>"


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http://127.0.0.1:9", "--as", "ollama"]) == 1
    assert "no answer" in capsys.readouterr().out


def chunk(*choices: dict[str, Any], **fields: Any) -> SseEvent:
    return SseEvent("", {"id": "x", "object": "o", "created": 1, "model": "m", "choices": list(choices)} | fields)


def delta(reason: str | None = None, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"index": index, "delta": fields, "finish_reason": reason}


DONE = SseEvent("", "[DONE]")
ROLE, TEXT, END = chunk(delta(role="assistant")), chunk(delta(content="a")), chunk(delta("stop"))
USAGE = chunk(usage={"total_tokens": 1})


def calling(index: int, **fields: Any) -> SseEvent:
    return chunk(delta(tool_calls=[{"index": index, "function": {"arguments": ""}} | fields]))


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}


def test_good_chat_streams() -> None:
    assert check_chat_stream([ROLE, TEXT, END, USAGE, DONE]) == []
    assert check_chat_stream([ROLE, TEXT, SseEvent("", {"error": {"message": "gone"}}), DONE]) == []
    assert check_chat_stream([ROLE, calling(0, **CALL), calling(0), calling(1, **CALL), calling(1), END, DONE]) == []


@pytest.mark.parametrize(
    "broken",
    [
        [ROLE, TEXT, END, USAGE],
        [ROLE, TEXT, DONE],
        [TEXT, END, DONE],
        [ROLE, END, END, DONE],
        [ROLE, END, TEXT, DONE],
        [ROLE, USAGE, END, DONE],
        [ROLE, END, USAGE, ROLE, DONE],
        [ROLE, END, DONE, DONE],
        [ROLE, END, chunk(), DONE],
        [ROLE, chunk(delta("stop"), id="y"), DONE],
        [ROLE, chunk({"index": 0, "delta": {}}), END, DONE],
        [ROLE, calling(0), END, DONE],
        [ROLE, calling(0, **CALL), calling(0, **CALL), END, DONE],
        [ROLE, calling(0, **CALL), calling(2, **CALL), END, DONE],
        [ROLE, SseEvent("", "x"), END, DONE],
        [DONE],
        [SseEvent("", {"error": {}}), DONE],
        [SseEvent("", {"error": "x"}), DONE],
        [],
    ],
)
def test_broken_chat_streams(broken: list[SseEvent]) -> None:
    assert check_chat_stream(broken)

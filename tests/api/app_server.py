"""The real HTTP application on a real socket, over a text pool that plays scripts in the same process.

A script is a function from a Request to the batches of events that one wake-up each delivers; "..." (Ellipsis) as a
batch means: nothing more until the client goes away.
"""

from __future__ import annotations

import asyncio
import dataclasses
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import EllipsisType

import uvloop

from ipc.messages import Delta, Failed, Finished, Started, TextEvent, Tokenized
from sparkinfer.api.models import ModelInfo
from sparkinfer.config import PublishConfig, ServerConfig
from sparkinfer.errors import RequestError
from sparkinfer.request import ChatPrompt, FinishReason, Prompt, Request, RequestId, TextPrompt
from workers.http_access_log import AccessLog
from workers.http_answer import Answer, TokenAnswer
from workers.http_api_keys import ApiKeys
from workers.http_app import HttpApp, routes
from workers.http_documents import Documents
from workers.http_events import EventRouter
from workers.http_generations import Generations, RequestIds
from workers.http_metrics import HttpMetrics
from workers.http_processes import ProcessSample
from workers.http_prompts import Prompts
from workers.http_server import make_server
from workers.http_surfaces import surface_routes, surface_sockets
from workers.http_text_pool import PromptQuestion

Script = Callable[[Request], Iterable[list[TextEvent] | EllipsisType]]

INFO = ModelInfo(
    model="tiny", max_model_len=512, max_output_tokens=64, vocab_size=1000, architecture="llama", quantization="Q8_0"
)


def prompt_text(prompt: Prompt) -> str:
    """What the scripts echo."""
    if isinstance(prompt, ChatPrompt):
        return prompt.messages[-1].content or ""
    if isinstance(prompt, TextPrompt):
        return prompt.text
    return " ".join(map(str, prompt.token_ids))


def finished(request: Request, choice: int = 0, num_tokens: int = 1, reason: int = FinishReason.STOP) -> Finished:
    return Finished(request.request_id, choice, reason, num_tokens, 0, 2, 10.0, 30.0)


def echo(request: Request) -> Iterable[list[TextEvent] | EllipsisType]:
    """The prompt's text back, one character a batch, the same for every choice."""
    text = prompt_text(request.prompt)
    yield [Started(request.request_id, 5, text if request.echo else "")]
    for character in text:
        yield [Delta(request.request_id, choice, character, "", 1) for choice in range(request.n)]
    yield [finished(request, choice, len(text)) for choice in range(request.n)]


class ScriptedPool:
    """A TextPool without processes. Aborts land in `aborts`, submitted requests in `submitted`."""

    def __init__(self) -> None:
        self.script: Script = echo
        self.refusal: RequestError | None = None
        self.submitted: queue.Queue[Request] = queue.Queue()
        self.aborts: queue.Queue[RequestId] = queue.Queue()
        self.router = EventRouter()
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, answer: Answer, requests: Sequence[Request]) -> None:
        if self.refusal is not None:
            raise self.refusal
        for request in requests:
            self.router.add(request.request_id, answer, "text-0", request.n)
            self.submitted.put(request)
            task = asyncio.get_running_loop().create_task(self._play(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def encode(
        self, answer: TokenAnswer, request_id: RequestId, question: PromptQuestion, *, with_text: bool,
        with_pieces: bool,
    ) -> None:
        """One token a character."""
        text = prompt_text(question.prompt)
        pieces = [character.encode() for character in text] if with_pieces else []
        self._reply(answer, Tokenized(request_id, list(range(len(text))), text if with_text else "", pieces))

    def decode(
        self, answer: TokenAnswer, request_id: RequestId, token_ids: tuple[int, ...], skip_special: bool
    ) -> None:
        self._reply(answer, Tokenized(request_id, list(token_ids), f"{token_ids} {skip_special}"))

    def _reply(self, answer: TokenAnswer, tokenized: Tokenized) -> None:
        self.router.add(tokenized.request_id, answer, "text-0")
        asyncio.get_running_loop().call_soon(self.router.deliver, [tokenized])

    def abandon(self, answer: Answer, requests: Sequence[Request]) -> None:
        for request_id, _ in self.router.remove(answer, [request.request_id for request in requests]):
            self.aborts.put(request_id)

    async def _play(self, request: Request) -> None:
        for batch in self.script(request):
            if batch is ...:
                return
            self.router.deliver(batch)
            await asyncio.sleep(0)


class FixedService:
    """A Service whose state the test sets."""

    def __init__(self) -> None:
        self.model_info: ModelInfo | None = INFO
        self.is_ready = True
        self.max_queue_depth = 0

    def grammar_text(self) -> str:
        return ""

    def engine_gauges(self) -> dict[str, float]:
        requests = {"active_requests": 3, "waiting_requests": 1, "running_requests": 2}
        return {**requests, "free_kv_blocks": 40, "uptime_seconds": 1}

    def processes(self) -> list[ProcessSample]:
        return [ProcessSample("gpu-0", True, 1.5, 4096, 2, 0.1)]


class AppServer:
    """Runs the application on its own event loop in a thread; a context manager."""

    def __init__(
        self, config: ServerConfig | None = None, unix_socket: str = "", publish: PublishConfig | None = None
    ) -> None:
        self.pool = ScriptedPool()
        self.service = FixedService()
        self.config = config or ServerConfig()
        self.publish = publish or PublishConfig()
        self._unix_socket = unix_socket
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._serving = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)

    def __enter__(self) -> AppServer:
        self._thread.start()
        assert self._serving.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._server.stop)
        self._thread.join(20)
        assert not self._thread.is_alive()

    def call(self, function: Callable[[], object]) -> None:
        """Run `function` on the server's loop and wait for it."""
        done = threading.Event()

        def run() -> None:
            function()
            done.set()

        self.loop.call_soon_threadsafe(run)
        assert done.wait(20)

    def fail_all(self, error: RequestError) -> None:
        """Every request in flight ends as if its worker had died."""
        self.call(lambda: self.pool.router.fail_all(error))

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        metrics = HttpMetrics()
        ids = RequestIds(0, 1)
        self.generations = Generations(self.service, self.pool, metrics, ids, self.config)
        self.keys = ApiKeys(self.config.api_keys, self.config.api_keys_file)
        documents = Documents(self.service, self.generations, metrics, self.config, self.publish)
        access_log = AccessLog("http-0", is_enabled=False)
        prompts = Prompts(self.generations, self.pool, ids)
        table = {
            **routes(documents, self.generations, prompts),
            **surface_routes(self.generations, prompts, self.config, run_dir=""),
        }
        sockets = surface_sockets(self.generations, prompts, self.keys, access_log)
        app = HttpApp(self.config, table, self.keys, metrics, access_log, sockets)
        config = dataclasses.replace(self.config, port=self.port)
        self._server = make_server(app, config, unix_socket=self._unix_socket)
        serving = asyncio.ensure_future(self._server.serve())
        while not (Path(self._unix_socket).is_socket() if self._unix_socket else _accepts(self.port)):
            await asyncio.sleep(0.01)
        self._serving.set()
        await serving


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


__all__ = ["INFO", "AppServer", "Failed", "echo", "finished", "prompt_text"]

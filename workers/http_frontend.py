"""The http worker: sockets, JSON and SSE on one side, text workers on the other.

Owns the listening socket and the life of the process; the work is done by the http_* parts. Never tokenises.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from granian.server.embed import Server

from ipc.codec import HTTP_INBOX
from ipc.messages import Drain, PeerDown, PeerUp, Reload
from ipc.status_board import HttpGauge, WorkerState
from sparkinfer.errors import ConfigError, RequestError
from workers import process
from workers.http_access_log import AccessLog
from workers.http_api_keys import ApiKeys
from workers.http_app import HttpApp, routes
from workers.http_documents import Documents
from workers.http_generations import Generations, RequestIds
from workers.http_metrics import HttpMetrics
from workers.http_prompts import Prompts
from workers.http_server import make_server
from workers.http_service import LiveService
from workers.http_surfaces import surface_routes, surface_sockets
from workers.http_text_pool import LiveTextPool
from workers.process import WorkerContext

if TYPE_CHECKING:
    from workers.http_traces import Traces

log = logging.getLogger("http")

HOUSEKEEPING_S = 1.0
PEERS_S = 5.0  # how long a worker that was started again waits for its peers before it listens
CLOSE_S = 0.2  # what idle connections may take to close at the end


class HttpFrontend:
    """One http worker process."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._config = context.config.server
        self._metrics = HttpMetrics(context.spec.name, str(Path(context.spec.run_dir) / "metrics"))
        self._service = LiveService(context)
        self._pool = LiveTextPool(context.spec.index, context.spec.generation, context.peers)
        self._ids = RequestIds(context.spec.index, context.spec.generation)
        self._keys = ApiKeys(self._config.api_keys, self._config.api_keys_file)
        self._traces = _traces(context)
        self._generations = Generations(
            self._service, self._pool, self._metrics, self._ids, self._config, self._traces
        )
        self._loop = asyncio.get_running_loop()
        self._stop = process.stop_event(self._loop)
        self._was_cut = False  # the drain ended requests with an error

    async def serve(self) -> int:
        """Serve until SIGTERM or Drain, then let the open answers end."""
        servers = self._servers()
        self._context.attach_to_loop(self._loop, self._on_messages, self._pool.on_frames)
        if self._context.spec.generation > 1:
            await self._until_peers_are_known()
        serving = asyncio.gather(*(server.serve() for server in servers))
        self._housekeeping()
        self._keep_alive()
        self._context.ready()
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            serving.result()
            raise RuntimeError("the HTTP server stopped by itself")
        await self._drain()
        await self._app.close_sockets()
        for server in servers:
            server.stop()  # type: ignore[no-untyped-call]  # granian leaves it unannotated
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)
        # Half-sent requests would hold it for ever; what it says about being abandoned concerns nobody.
        await asyncio.wait((serving,), timeout=CLOSE_S)
        self._loop.set_exception_handler(lambda _loop, details: log.debug("closing: %s", details["message"]))
        return process.EXIT_CUT if self._was_cut else process.EXIT_CLEAN

    async def _until_peers_are_known(self) -> None:
        """A successor that listens before it can serve takes connections from the others and answers them 503."""
        self._context.ready()
        deadline = self._loop.time() + PEERS_S
        while not (self._service.is_ready or self._stop.is_set() or self._loop.time() > deadline):
            await asyncio.sleep(0.02)

    def _servers(self) -> list[Server]:
        publish = self._context.config.publish
        documents = Documents(self._service, self._generations, self._metrics, self._config, publish)
        access_log = AccessLog(self._context.spec.name, self._context.config.log.access)
        prompts = Prompts(self._generations, self._pool, self._ids)
        surfaces = surface_routes(self._generations, prompts, self._config, self._context.spec.run_dir)
        table = {**routes(documents, self._generations, prompts), **surfaces}
        sockets = surface_sockets(self._generations, prompts, self._keys, access_log)
        self._app = HttpApp(self._config, table, self._keys, self._metrics, access_log, sockets)
        servers = [make_server(self._app, self._config)]
        if self._config.unix_socket and self._context.spec.index == 0:
            servers.append(make_server(self._app, self._config, unix_socket=self._config.unix_socket))
        return servers

    async def _drain(self) -> None:
        self._context.status.state = WorkerState.DRAINING
        self._generations.is_draining = True
        log.info("draining: %d open requests", len(self._generations.open_answers))
        try:
            await asyncio.wait_for(self._generations.idle(), self._config.drain_grace_s or None)
        except TimeoutError:
            self._was_cut = True
            log.warning("%d requests did not end in time", len(self._generations.open_answers))
            self._pool.router.fail_all(RequestError(503, "The server is shutting down", code="shutting_down"))
            await self._generations.idle()

    def _on_messages(self, messages: list[Any]) -> None:
        for message in messages:
            if isinstance(message, PeerUp):
                self._context.peers.up(message)
                self._service.on_peer_up(message.name)
            elif isinstance(message, PeerDown):
                if self._context.peers.down(message) and message.name.startswith("text-"):
                    self._pool.on_worker_down(message.name)
            elif isinstance(message, Reload):
                self._keys.reload()
            elif isinstance(message, Drain):
                self._stop.set()

    def _keep_alive(self) -> None:
        if self._config.sse_keepalive_s:
            self._generations.tick()
            self._loop.call_later(self._config.sse_keepalive_s / 2, self._keep_alive)

    def _housekeeping(self) -> None:
        self._metrics.hand_over()
        status = self._context.status
        status.set_gauge(HttpGauge.OPEN_REQUESTS, len(self._generations.open_answers))
        status.set_gauge(HttpGauge.OPEN_STREAMS, self._generations.num_streams)
        status.set_gauge(HttpGauge.REQUESTS, self._generations.num_requests)
        status.set_gauge(HttpGauge.REJECTED_REQUESTS, self._generations.num_rejected)
        self._loop.call_later(HOUSEKEEPING_S, self._housekeeping)


def _traces(context: WorkerContext) -> Traces | None:
    """What [server] traces_endpoint asks for. Raises ConfigError when it cannot be."""
    endpoint = context.config.server.traces_endpoint
    if not endpoint:
        return None
    try:
        from workers.http_traces import Traces  # OpenTelemetry is an optional dependency
    except ModuleNotFoundError as error:
        raise ConfigError(f"[server] traces_endpoint = {endpoint!r}: needs sparkinfer[traces] ({error})") from None
    return Traces.to_collector(context.spec.name, endpoint)


async def _serve(context: WorkerContext) -> int:
    return await HttpFrontend(context).serve()


if __name__ == "__main__":
    process.run(process.run_async(_serve), HTTP_INBOX)

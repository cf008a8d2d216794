"""The RSGI application: front door, keys, routes, and the one place that turns errors into responses.

Knows which handler serves which route; never what a handler does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from sparkinfer.api.error_bodies import surface_headers
from sparkinfer.api.openapi import OPERATIONS
from sparkinfer.api.openapi_surfaces import SURFACE_OPERATIONS
from sparkinfer.config import ServerConfig
from sparkinfer.errors import RequestError
from workers.http_access_log import AccessLog
from workers.http_api_keys import ApiKeys
from workers.http_body_thread import BodyThread
from workers.http_documents import Documents
from workers.http_exchange import Connection, Exchange, Response, Scope, error_response
from workers.http_front_door import FrontDoor, request_id_of
from workers.http_generations import Generations
from workers.http_metrics import HttpMetrics
from workers.http_prompts import Prompts
from workers.http_socket import Socket, SocketConnection

log = logging.getLogger("http")

Handler = Callable[[Exchange], Awaitable[Response | None]]
Routes = Mapping[str, Mapping[str, Handler]]  # route template -> method -> handler
SocketRoutes = Mapping[str, Callable[[Socket], Awaitable[None]]]  # path -> what serves a WebSocket

# Routes with a part of their own in the path. The id of a model may have slashes in it.
_PATTERNS = {
    "/v1/models/{id}": re.compile(r"/v1/models/.+"),
    "/api/v0/models/{id}": re.compile(r"/api/v0/models/.+"),
    "/api/blobs/{digest}": re.compile(r"/api/blobs/[^/]+"),
    "/v1/responses/{id}/input_items": re.compile(r"/v1/responses/[^/]+/input_items"),
    "/v1/responses/{id}": re.compile(r"/v1/responses/[^/]+"),
}
SOCKETS_S = 2.0  # what all WebSockets may take to close at the end
_ANY_METHOD = "GET, HEAD, POST, OPTIONS"
_OPEN_ROUTES = frozenset(
    operation.path for operation in (*OPERATIONS, *SURFACE_OPERATIONS) if not operation.needs_key
)


class HttpApp:
    """Answers every request exactly once, whatever it is."""

    def __init__(
        self, config: ServerConfig, routes: Routes, keys: ApiKeys, metrics: HttpMetrics, access_log: AccessLog,
        sockets: SocketRoutes,
    ) -> None:
        self._front_door = FrontDoor(config)
        self._keys = keys
        self._metrics = metrics
        self._access_log = access_log
        self._max_body_bytes = config.max_body_mib << 20
        self._max_unsent_bytes = config.max_unsent_kib << 10
        self._bodies = BodyThread()
        self._routes = routes
        self._sockets = sockets
        self._open_sockets: dict[Socket, asyncio.Event] = {}  # each with what is set when it is closed

    async def close_sockets(self) -> None:
        """Once no answer is open: let every WebSocket send what is left, and close it."""
        for socket in self._open_sockets:
            socket.is_leaving.set()
        closed = [event.wait() for event in self._open_sockets.values()]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*closed), SOCKETS_S)

    async def __rsgi__(self, scope: Scope, connection: Connection | SocketConnection) -> None:
        path = self._front_door.local_path(scope.path)
        if scope.proto == "ws":
            await self._serve_socket(path, scope, cast(SocketConnection, connection))
        else:
            await self._answer(path, scope, cast(Connection, connection))

    async def _answer(self, path: str, scope: Scope, connection: Connection) -> None:
        route = self._route(path)
        exchange = Exchange(scope, connection, path, self._max_body_bytes, self._bodies)
        exchange.request_id = request_id_of(scope)
        exchange.common_headers = [
            *self._front_door.common_headers(scope, exchange.request_id),
            *surface_headers(path, exchange.request_id),
        ]
        try:
            response = await self._handle(route, exchange)
        except RequestError as error:
            allow = {"allow": self._allow(route)} if error.status == 405 else None
            response = error_response(exchange, error, allow)
        except Exception:  # the one boundary of the HTTP side: a bug must cost its own request, not all others
            log.exception("%s %s failed, %s", scope.method, route, exchange.request_id)
            response = error_response(exchange, RequestError(500, "Internal error"))
        status = exchange.sent_status if response is None else response.status
        self._metrics.responses.labels(route, str(status)).inc()
        if response is not None:
            exchange.send(response)
        self._access_log.write(exchange, status)

    async def _serve_socket(self, path: str, scope: Scope, connection: SocketConnection) -> None:
        """The key may come in the first message, from clients that cannot send headers: it is not checked here."""
        serve = self._sockets.get(path)
        status = 101 if serve is not None else 404
        try:
            self._front_door.check_host(scope)
            self._front_door.check_origin(scope)
        except RequestError as error:
            status = error.status
        self._metrics.responses.labels(path if serve is not None else "other", str(status)).inc()
        if serve is None or status != 101:
            connection.close(status)
            return
        transport = await connection.accept()
        socket = Socket(scope, transport, self._bodies, self._max_body_bytes, self._max_unsent_bytes)
        closed = self._open_sockets[socket] = asyncio.Event()
        try:
            await serve(socket)
        except Exception:  # as above
            log.exception("WebSocket %s failed", path)
        finally:
            connection.close(None)
            del self._open_sockets[socket]
            closed.set()

    def _route(self, path: str) -> str:
        """The route template of a path, "other" when there is none."""
        if path in self._routes:
            return path
        for template, pattern in _PATTERNS.items():
            if pattern.fullmatch(path) and template in self._routes:
                return template
        return "other"

    async def _handle(self, route: str, exchange: Exchange) -> Response | None:
        self._front_door.check_host(exchange.scope)
        method = exchange.scope.method
        if method == "OPTIONS":
            return self._front_door.preflight(exchange.scope, self._allow(route))
        methods = self._routes.get(route)
        if methods is None:
            raise RequestError(404, f"There is no {exchange.scope.path[:200]!r} here")
        handler = methods.get("GET" if method == "HEAD" else method)
        if method not in ("GET", "HEAD"):
            self._front_door.check_website(exchange.scope)
        if handler is None:
            raise RequestError(405, f"{method[:32]} is not allowed here; use {', '.join(methods)}")
        if route not in _OPEN_ROUTES:
            exchange.client_id = self._keys.check(exchange.header("authorization"), exchange.header("x-api-key"))
        return await handler(exchange)

    def _allow(self, route: str) -> str:
        """The Allow header of a route."""
        if route not in self._routes:
            return _ANY_METHOD
        methods = list(self._routes[route])
        return ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])


def routes(documents: Documents, generations: Generations, prompts: Prompts) -> Routes:
    """Everything that is served."""
    return {
        "/v1/chat/completions": {"POST": generations.chat},
        "/v1/completions": {"POST": generations.completion},
        "/v1/score": {"POST": generations.score},
        "/v1/tokenize": {"POST": prompts.tokenize},
        "/v1/detokenize": {"POST": prompts.detokenize},
        "/v1/apply-template": {"POST": prompts.apply_template},
        "/v1/models": {"GET": documents.models},
        "/v1/models/{id}": {"GET": documents.model},
        "/v1/info": {"GET": documents.info},
        "/v1/capacity": {"GET": documents.capacity},
        "/v1/embeddings": {"POST": documents.no_embeddings},
        "/health": {"GET": documents.health},
        "/ready": {"GET": documents.ready},
        "/metrics": {"GET": documents.metrics},
        "/openapi.json": {"GET": documents.openapi},
    }

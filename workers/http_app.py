"""The RSGI application: routes, keys, the small GET documents, and the one place that turns errors into responses.

Knows no peer: what it needs of the service comes through Service and TextPool.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable

from sparkinfer.api.models import ModelInfo, find_model, info_document, models_document
from sparkinfer.config import ServerConfig
from sparkinfer.errors import RequestError
from workers.http_exchange import Connection, Exchange, Response, Scope, error_response, json_response
from workers.http_generations import Generations
from workers.http_metrics import CONTENT_TYPE, HttpMetrics
from workers.http_service import Service

log = logging.getLogger("http")

Handler = Callable[[Exchange], Awaitable[Response | None]]

_MODEL_PREFIX = "/v1/models/"
_OPEN_ROUTES = frozenset({"/health", "/ready", "/v1/models", "/v1/models/{id}", "/v1/capacity", "/metrics"})


class HttpApp:
    """Answers every request exactly once, whatever it is."""

    def __init__(self, config: ServerConfig, service: Service, generations: Generations, metrics: HttpMetrics) -> None:
        self._service = service
        self._generations = generations
        self._metrics = metrics
        self._max_body_bytes = config.max_body_mib << 20
        self._api_keys = tuple(key.encode() for key in config.api_keys)
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": generations.chat},
            "/v1/completions": {"POST": generations.completion},
            "/v1/tokenize": {"POST": generations.tokenize},
            "/v1/models": {"GET": self._models},
            "/v1/models/{id}": {"GET": self._model},
            "/v1/info": {"GET": self._info},
            "/v1/capacity": {"GET": self._capacity},
            "/health": {"GET": self._health},
            "/ready": {"GET": self._ready},
            "/metrics": {"GET": self._render_metrics},
        }

    async def __rsgi__(self, scope: Scope, connection: Connection) -> None:
        route = self._route(scope.path)
        exchange = Exchange(scope, connection, self._max_body_bytes)
        try:
            response = await self._handle(route, exchange)
        except RequestError as error:
            response = error_response(error, self._allow_header(route) if error.status == 405 else None)
        except Exception:  # the one boundary of the HTTP side: a bug must cost its own request, not all others
            log.exception("%s %s failed", scope.method, route)
            response = error_response(RequestError(500, "Internal error"))
        status = exchange.sent_status if response is None else response.status
        self._metrics.responses.labels(route, str(status)).inc()
        if response is not None:
            connection.response_bytes(response.status, response.headers, response.body)

    def _route(self, path: str) -> str:
        """The route template of a path, "other" when there is none. One trailing slash is tolerated."""
        path = path.removesuffix("/")
        if path.startswith(_MODEL_PREFIX):
            return "/v1/models/{id}"
        return path if path in self._routes else "other"

    async def _handle(self, route: str, exchange: Exchange) -> Response | None:
        methods = self._routes.get(route)
        if methods is None:
            raise RequestError(404, f"There is no {exchange.scope.path[:200]!r} here")
        method = exchange.scope.method
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            raise RequestError(405, f"{method[:32]} is not allowed here; use {', '.join(methods)}")
        if self._api_keys and route not in _OPEN_ROUTES:
            self._check_key(exchange.header("authorization"))
        return await handler(exchange)

    def _allow_header(self, route: str) -> dict[str, str]:
        methods = list(self._routes[route])
        return {"allow": ", ".join(["HEAD", *methods] if "GET" in methods else methods)}

    def _check_key(self, authorization: str) -> None:
        scheme, _, key = authorization.partition(" ")
        given = key.strip().encode("utf-8", "replace")
        # Every key is compared, so that the time tells nothing about which one was close.
        matches = [hmac.compare_digest(given, known) for known in self._api_keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise RequestError(401, "A valid API key is required: Authorization: Bearer KEY")

    def _info_or_503(self) -> ModelInfo:
        info = self._service.model_info
        if info is None:
            raise RequestError(503, "The model is not loaded yet; please retry", code="not_ready")
        return info

    def _is_ready(self) -> bool:
        return self._service.is_ready and not self._generations.is_draining

    async def _health(self, _exchange: Exchange) -> Response:
        return json_response({"status": "ok"})

    async def _ready(self, _exchange: Exchange) -> Response:
        if self._generations.is_draining:
            raise RequestError(503, "The server is shutting down", code="shutting_down")
        if not self._service.is_ready:
            raise RequestError(503, "The model is not ready", code="not_ready")
        return json_response({"status": "ready"})

    async def _models(self, _exchange: Exchange) -> Response:
        return json_response(models_document(self._info_or_503(), self._is_ready()))

    async def _model(self, exchange: Exchange) -> Response:
        model_id = exchange.scope.path.removeprefix(_MODEL_PREFIX).removesuffix("/")
        return json_response(find_model(self._info_or_503(), model_id, self._is_ready()))

    async def _info(self, _exchange: Exchange) -> Response:
        return json_response(info_document(self._info_or_503()))

    async def _capacity(self, _exchange: Exchange) -> Response:
        gauges = self._service.engine_gauges()
        names = ("active_requests", "waiting_requests", "free_kv_blocks")
        document = {name: gauges.get(name, 0) for name in names}
        document["max_queue_depth"] = self._service.max_queue_depth
        return json_response({**document, "accepting_requests": self._is_ready()})

    async def _render_metrics(self, _exchange: Exchange) -> Response:
        body = self._metrics.render(self._service.engine_gauges())
        return Response(200, body, [("content-type", CONTENT_TYPE)])

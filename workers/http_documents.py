"""The small GET routes: what is served, how it is doing, and the metrics.

Knows the service and the counters; never a request that generates.
"""

from __future__ import annotations

from sparkinfer.api.anthropic.models import model_object, models_page
from sparkinfer.api.models import ModelInfo, info_document
from sparkinfer.api.models_document import ModelsDocument
from sparkinfer.api.openapi import openapi_document
from sparkinfer.api.sse import encode_json
from sparkinfer.config import PublishConfig, ServerConfig
from sparkinfer.errors import RequestError
from workers.http_exchange import ANTHROPIC_HEADER, Exchange, Response, json_response
from workers.http_generations import Generations
from workers.http_metrics import CONTENT_TYPE, HttpMetrics
from workers.http_service import Service
from workers.http_vllm_names import with_vllm_names

MODEL_PREFIX = "/v1/models/"
API_VERSION = "1"  # of the routes and their documents; grows with the first change that breaks a client


class Documents:
    """Handlers of GET routes, all answered at once from memory."""

    def __init__(
        self, service: Service, generations: Generations, metrics: HttpMetrics, server: ServerConfig,
        publish: PublishConfig,
    ) -> None:  # fmt: skip
        self._service = service
        self._generations = generations
        self._metrics = metrics
        self._config = server
        has_keys = bool(server.api_keys or server.api_keys_file)
        self._openapi = encode_json(openapi_document(API_VERSION, server.path_prefix, has_keys))
        self._models = ModelsDocument(publish, service.max_queue_depth)

    async def health(self, _exchange: Exchange) -> Response:
        """GET /health: this process answers, and the engine that was there still is."""
        if self._service.model_info is None or self._service.is_ready:
            return json_response({"status": "ok"})
        return json_response({"status": "unhealthy", "reason": "a worker died and is being started again"}, 503)

    async def ready(self, _exchange: Exchange) -> Response:
        """GET /ready: a request would be taken."""
        if self._generations.is_draining:
            raise RequestError(503, "The server is shutting down", code="shutting_down")
        if not self._service.is_ready:
            raise RequestError(503, "The model is not ready", code="not_ready")
        return json_response({"status": "ready"})

    async def models(self, exchange: Exchange) -> Response:
        """GET /v1/models, as OpenAI or, for a client that says so, Anthropic has it"""
        info = self._info()
        if exchange.header(ANTHROPIC_HEADER):
            return json_response(models_page(info))
        return json_response(self._models.list(info, self._is_ready()))

    async def model(self, exchange: Exchange) -> Response:
        """GET /v1/models/{id}"""
        model_id = exchange.path.removeprefix(MODEL_PREFIX)
        found = self._models.find(self._info(), model_id, self._is_ready())
        return json_response(model_object(self._info()) if exchange.header(ANTHROPIC_HEADER) else found)

    async def info(self, _exchange: Exchange) -> Response:
        """GET /v1/info"""
        return json_response(info_document(self._info()))

    async def capacity(self, _exchange: Exchange) -> Response:
        """GET /v1/capacity"""
        gauges = self._service.engine_gauges()
        names = ("active_requests", "waiting_requests", "free_kv_blocks")
        document = {name: gauges.get(name, 0) for name in names}
        document["max_queue_depth"] = self._service.max_queue_depth
        return json_response({**document, "accepting_requests": self._is_ready()})

    async def openapi(self, _exchange: Exchange) -> Response:
        """GET /openapi.json"""
        return Response(200, self._openapi)

    async def no_embeddings(self, _exchange: Exchange) -> Response:
        """POST /v1/embeddings"""
        raise RequestError(501, "This server makes no embeddings", code="embeddings_unsupported")

    async def metrics(self, _exchange: Exchange) -> Response:
        """GET /metrics"""
        text = self._metrics.render(self._service.engine_gauges(), self._service.processes())
        text += self._service.grammar_text()
        if self._config.vllm_metric_names:
            info = self._service.model_info
            text = with_vllm_names(text, info.model if info is not None else "")
        return Response(200, text.encode(), [("content-type", CONTENT_TYPE)])

    def _info(self) -> ModelInfo:
        info = self._service.model_info
        if info is None:
            raise RequestError(503, "The model is not loaded yet; please retry", code="not_ready")
        return info

    def _is_ready(self) -> bool:
        return self._service.is_ready and not self._generations.is_draining

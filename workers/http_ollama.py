"""The routes of Ollama's API."""

from __future__ import annotations

import functools
import time

from sparkinfer.api.generation import Generation, MakeReply, NewRequestId
from sparkinfer.api.model_facts import timestamp
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.ollama.documents import ps_document, show_document, tags_document, version_document
from sparkinfer.api.ollama.reply import OllamaReply
from sparkinfer.api.ollama.request import (
    CHAT_NAMES,
    GENERATE_NAMES,
    check_model,
    is_load,
    load_reply,
    parse_ollama_chat,
    parse_ollama_generate,
)
from sparkinfer.api.schema import Object
from sparkinfer.errors import RequestError
from workers.http_exchange import Exchange, Response, json_response
from workers.http_generations import Generations

GREETING = b"Ollama is running"  # by which clients know whom they talk to


class OllamaRoutes:
    """Handlers of / and of /api below."""

    def __init__(self, generations: Generations) -> None:
        self._generations = generations

    async def greet(self, _exchange: Exchange) -> Response:
        """GET and HEAD /"""
        return Response(200, GREETING, [("content-type", "text/plain; charset=utf-8")])

    async def version(self, _exchange: Exchange) -> Response:
        """GET /api/version"""
        return json_response(version_document())

    async def tags(self, _exchange: Exchange) -> Response:
        """GET /api/tags"""
        return json_response(tags_document(self._generations.accepting()))

    async def ps(self, _exchange: Exchange) -> Response:
        """GET /api/ps"""
        return json_response(ps_document(self._generations.accepting()))

    async def show(self, exchange: Exchange) -> Response:
        """POST /api/show"""
        info = self._generations.accepting()
        check_model(await exchange.json_object(), info)
        return json_response(show_document(info))

    async def chat(self, exchange: Exchange) -> Response | None:
        """POST /api/chat"""
        return await self._answer(exchange, is_chat=True)

    async def generate(self, exchange: Exchange) -> Response | None:
        """POST /api/generate"""
        return await self._answer(exchange, is_chat=False)

    async def no_embeddings(self, _exchange: Exchange) -> Response:
        """POST /api/embed and /api/embeddings"""
        raise RequestError(501, "this server makes no embeddings", code="embeddings_unsupported")

    async def no_management(self, _exchange: Exchange) -> Response:
        """The routes that fetch, make and delete models."""
        raise RequestError(501, "this server has one model, and its operator chooses it")

    async def _answer(self, exchange: Exchange, *, is_chat: bool) -> Response | None:
        async def load(body: Object) -> Response | None:
            if not is_load(body):
                return None
            info = self._generations.accepting()
            check_model(body, info)
            return Response(200, load_reply(body, info, timestamp(time.time()), is_chat=is_chat))

        names = CHAT_NAMES if is_chat else GENERATE_NAMES
        return await self._generations.run(exchange, functools.partial(_plan, is_chat), load, names)


def _plan(
    is_chat: bool, body: Object, info: ModelInfo, new_request_id: NewRequestId
) -> tuple[Generation, MakeReply]:
    parse = parse_ollama_chat if is_chat else parse_ollama_generate
    generation = parse(body, info, new_request_id)
    return generation, functools.partial(OllamaReply, model=str(body["model"]), is_chat=is_chat)

"""The routes of OpenAI's Responses API."""

from __future__ import annotations

import functools
from typing import Any

from sparkinfer.api.generation import Generation, MakeReply, NewRequestId
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.responses.item_page import item_page, parse_page_query
from sparkinfer.api.responses.reply import ResponsesReply
from sparkinfer.api.responses.request import (
    FIELD_NAMES,
    ResponsesRequest,
    parse_responses_prompt,
    parse_responses_request,
)
from sparkinfer.api.responses.store import StoredResponse
from sparkinfer.api.schema import Object, fail
from sparkinfer.errors import RequestError
from workers.http_exchange import Exchange, Response, json_response
from workers.http_generations import Generations
from workers.http_prompts import Prompts
from workers.http_response_store import Items, ResponseKeeper
from workers.http_text_pool import PromptQuestion

RESPONSE_PREFIX = "/v1/responses/"
ITEMS_SUFFIX = "/input_items"


class ResponsesRoutes:
    """Handlers of /v1/responses and below."""

    def __init__(self, generations: Generations, prompts: Prompts, store: ResponseKeeper) -> None:
        self._generations = generations
        self._prompts = prompts
        self._store = store

    async def create(self, exchange: Exchange) -> Response | None:
        """POST /v1/responses"""
        history: Items = []

        async def look_up(body: Object) -> Response | None:
            history.extend(await self._store.history(exchange.client_id, body))
            return None

        plan = functools.partial(self._plan, exchange.client_id, history)
        return await self._generations.run(exchange, plan, look_up, FIELD_NAMES)

    async def count_tokens(self, exchange: Exchange) -> Response:
        """POST /v1/responses/input_tokens"""
        self._generations.accepting()
        body = await exchange.json_object()
        history = await self._store.history(exchange.client_id, body)
        asked = await exchange.on_body(parse_responses_prompt, body, lambda _: history)
        encoded = await self._prompts.encode(PromptQuestion(asked.prompt, asked.policy, asked.output_format))
        return json_response({"object": "response.input_tokens", "input_tokens": len(encoded.token_ids)})

    async def get(self, exchange: Exchange) -> Response:
        """GET /v1/responses/{id}; answers run only while they are made, so that there is no stream to come back to."""
        stream = exchange.query().get("stream", "false").lower()
        if stream not in ("false", "0"):
            fail("stream", "only background responses can be streamed again, and this server makes none")
        return json_response((await self._store.get(exchange.client_id, _id(exchange))).response)

    async def delete(self, exchange: Exchange) -> Response:
        """DELETE /v1/responses/{id}"""
        await self._store.delete(exchange.client_id, _id(exchange))
        return json_response({"id": _id(exchange), "object": "response", "deleted": True})

    async def input_items(self, exchange: Exchange) -> Response:
        """GET /v1/responses/{id}/input_items, a page of them"""
        query = parse_page_query(exchange.query())
        response_id = _id(exchange).removesuffix(ITEMS_SUFFIX)
        items = (await self._store.get(exchange.client_id, response_id)).input
        return json_response(item_page(response_id, items, query))

    async def no_compaction(self, _exchange: Exchange) -> Response:
        """POST /v1/responses/compact"""
        raise RequestError(
            501, "This server compacts no conversations; ask for a summary with /v1/responses",
            code="compaction_unsupported",
        )

    def _plan(
        self, owner: int, history: Items, body: Object, info: ModelInfo, new_request_id: NewRequestId
    ) -> tuple[Generation, MakeReply]:
        asked = parse_responses_request(body, info, new_request_id, lambda _: history)
        save = functools.partial(self._save, owner, asked)
        return asked.generation, functools.partial(ResponsesReply, asked=asked, save=save)

    async def _save(self, owner: int, asked: ResponsesRequest, response: dict[str, Any]) -> bool:
        return await self._store.put(owner, StoredResponse(response, asked.items))


def _id(exchange: Exchange) -> str:
    return exchange.path.removeprefix(RESPONSE_PREFIX)

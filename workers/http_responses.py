"""The routes of OpenAI's Responses API, and the store behind them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from sparkinfer.api.generation import Generation, MakeReply, NewRequestId
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.responses.reply import ResponsesReply
from sparkinfer.api.responses.request import ResponsesRequest, parse_responses_prompt, parse_responses_request
from sparkinfer.api.responses.store import ResponseStore, StoredResponse
from sparkinfer.api.schema import Object
from sparkinfer.config import ServerConfig
from sparkinfer.errors import ConfigError
from workers.http_exchange import Exchange, Response, json_response
from workers.http_generations import Generations
from workers.http_prompts import Prompts
from workers.http_text_pool import PromptQuestion

RESPONSE_PREFIX = "/v1/responses/"
ITEMS_SUFFIX = "/input_items"


class ResponsesRoutes:
    """Handlers of /v1/responses and below."""

    def __init__(self, generations: Generations, prompts: Prompts, store: ResponseStore) -> None:
        self._generations = generations
        self._prompts = prompts
        self._store = store

    async def create(self, exchange: Exchange) -> Response | None:
        """POST /v1/responses"""
        return await self._generations.run(exchange, functools.partial(self._plan, exchange.client_id))

    async def count_tokens(self, exchange: Exchange) -> Response:
        """POST /v1/responses/input_tokens"""
        self._generations.accepting()
        body = await exchange.json_object()
        asked = parse_responses_prompt(body, functools.partial(self._store.history, exchange.client_id))
        encoded = await self._prompts.encode(PromptQuestion(asked.prompt, asked.policy, asked.output_format))
        return json_response({"object": "response.input_tokens", "input_tokens": len(encoded.token_ids)})

    async def get(self, exchange: Exchange) -> Response:
        """GET /v1/responses/{id}"""
        return json_response(self._store.get(exchange.client_id, _id(exchange)).response)

    async def delete(self, exchange: Exchange) -> Response:
        """DELETE /v1/responses/{id}"""
        self._store.delete(exchange.client_id, _id(exchange))
        return json_response({"id": _id(exchange), "object": "response", "deleted": True})

    async def input_items(self, exchange: Exchange) -> Response:
        """GET /v1/responses/{id}/input_items: all of them, the newest first."""
        response_id = _id(exchange).removesuffix(ITEMS_SUFFIX)
        items = self._store.get(exchange.client_id, response_id).input
        named = [{"id": f"item_{response_id}_{i}", "type": "message"} | item for i, item in enumerate(items)][::-1]
        return json_response(
            {"object": "list", "data": named, "first_id": named[0]["id"], "last_id": named[-1]["id"], "has_more": False}
        )

    def _plan(
        self, owner: int, body: Object, info: ModelInfo, new_request_id: NewRequestId
    ) -> tuple[Generation, MakeReply]:
        asked = parse_responses_request(body, info, new_request_id, functools.partial(self._store.history, owner))
        save = functools.partial(self._save, owner, asked)
        return asked.generation, functools.partial(ResponsesReply, asked=asked, save=save)

    def _save(self, owner: int, asked: ResponsesRequest, response: dict[str, Any]) -> None:
        if asked.store:
            self._store.put(owner, StoredResponse(response, asked.items))


def open_store(config: ServerConfig, run_dir: str) -> ResponseStore:
    """Where the configuration says; without a directory it lives as long as the run does. Raises ConfigError."""
    directory = config.responses_directory or run_dir
    if config.responses_directory:
        try:
            Path(directory).expanduser().mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"[server] responses_directory = {directory!r}: {error.strerror}") from None
    path = str(Path(directory).expanduser() / "responses.sqlite") if directory else ":memory:"
    return ResponseStore(path, config.max_stored_responses, config.stored_responses_mib << 20)


def _id(exchange: Exchange) -> str:
    return exchange.path.removeprefix(RESPONSE_PREFIX)

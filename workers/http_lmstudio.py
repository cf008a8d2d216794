"""The routes of LM Studio's API, version 0 and 1."""

from __future__ import annotations

import functools
import time

from sparkinfer.api.blocks import Block
from sparkinfer.api.chat import parse_chat
from sparkinfer.api.chat_reply import ChatReply
from sparkinfer.api.completions import parse_completion
from sparkinfer.api.completions_reply import CompletionReply
from sparkinfer.api.generation import Generation, MakeReply, NewRequestId
from sparkinfer.api.lmstudio.documents import v0_model, v0_models, v1_models
from sparkinfer.api.lmstudio.v0 import V0Reply, without_endless
from sparkinfer.api.lmstudio.v1_reply import LmStudioReply
from sparkinfer.api.lmstudio.v1_request import FIELD_NAMES, LmStudioChat, parse_v1_chat
from sparkinfer.api.model_facts import check_model_name
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.responses.store import StoredResponse
from sparkinfer.api.schema import Object, read_str
from sparkinfer.errors import RequestError
from workers.http_exchange import Exchange, Response, json_response
from workers.http_generations import Generations
from workers.http_response_store import Items, ResponseKeeper

V0_MODEL_PREFIX = "/api/v0/models/"


class LmStudioRoutes:
    """Handlers of /api/v0 and /api/v1."""

    def __init__(self, generations: Generations, store: ResponseKeeper) -> None:
        """store: where chats are kept whose clients go on by id."""
        self._generations = generations
        self._store = store

    async def greet(self, _exchange: Exchange) -> Response:
        """GET /lmstudio-greeting: where the SDKs look for a server."""
        return json_response({"lmstudio": True})

    async def v0_models(self, _exchange: Exchange) -> Response:
        """GET /api/v0/models"""
        return json_response(v0_models(self._generations.accepting()))

    async def v0_model(self, exchange: Exchange) -> Response:
        """GET /api/v0/models/{id}"""
        info = self._generations.accepting()
        check_model_name(info, exchange.path.removeprefix(V0_MODEL_PREFIX))
        return json_response(v0_model(info))

    async def v0_chat(self, exchange: Exchange) -> Response | None:
        """POST /api/v0/chat/completions"""
        return await self._generations.run(exchange, _plan_v0_chat)

    async def v0_completion(self, exchange: Exchange) -> Response | None:
        """POST /api/v0/completions"""
        return await self._generations.run(exchange, _plan_v0_completion)

    async def v1_models(self, _exchange: Exchange) -> Response:
        """GET /api/v1/models"""
        return json_response(v1_models(self._generations.accepting()))

    async def v1_chat(self, exchange: Exchange) -> Response | None:
        """POST /api/v1/chat"""
        history: Items = []

        async def look_up(body: Object) -> Response | None:
            history.extend(await self._store.history(exchange.client_id, body))
            return None

        plan = functools.partial(self._plan_v1, exchange.client_id, history)
        return await self._generations.run(exchange, plan, look_up, FIELD_NAMES)

    async def no_embeddings(self, _exchange: Exchange) -> Response:
        """POST /api/v0/embeddings"""
        raise RequestError(501, "this server makes no embeddings", code="embeddings_unsupported")

    async def no_management(self, _exchange: Exchange) -> Response:
        """The routes that load, unload and fetch models."""
        raise RequestError(501, "this server has one model, and its operator chooses it")

    def _plan_v1(
        self, owner: int, history: Items, body: Object, info: ModelInfo, new_request_id: NewRequestId
    ) -> tuple[Generation, MakeReply]:
        asked = parse_v1_chat(body, info, new_request_id, lambda _: history)
        save = functools.partial(self._save, owner, asked) if asked.store else None
        return asked.generation, functools.partial(LmStudioReply, model=info.model, save=save)

    async def _save(self, owner: int, asked: LmStudioChat, response_id: str, blocks: list[Block]) -> bool:
        output = [_item(block, f"{response_id}_{i}") for i, block in enumerate(blocks)]
        response = asked.response | {"id": response_id, "created_at": int(time.time()), "output": output}
        return await self._store.put(owner, StoredResponse(response, asked.items))


def _item(block: Block, item_id: str) -> dict[str, object]:
    """As the Responses API has it."""
    head = {"id": item_id, "status": "completed"}
    if block.kind == "reasoning":
        part = {"type": "reasoning_text", "text": block.text}
        return {**head, "type": "reasoning", "summary": [], "content": [part]}
    text = {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
    return {**head, "type": "message", "role": "assistant", "content": [text]}


def _checked(body: Object, info: ModelInfo) -> Object:
    name = read_str(body, "model")
    if name:
        check_model_name(info, name)
    return without_endless(body)


def _plan_v0_chat(body: Object, info: ModelInfo, new_request_id: NewRequestId) -> tuple[Generation, MakeReply]:
    generation = parse_chat(_checked(body, info), info, new_request_id)

    def make_reply(reply_id: str, created: int) -> V0Reply:
        return V0Reply(ChatReply(reply_id, created, info, exclude_reasoning=generation.exclude_reasoning), info)

    return generation, make_reply


def _plan_v0_completion(body: Object, info: ModelInfo, new_request_id: NewRequestId) -> tuple[Generation, MakeReply]:
    generation = parse_completion(_checked(body, info), info, new_request_id)
    return generation, lambda reply_id, created: V0Reply(CompletionReply(reply_id, created, info), info)

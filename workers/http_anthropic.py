"""The routes of Anthropic's Messages API."""

from __future__ import annotations

import functools

from sparkinfer.api.anthropic.reply import MessagesReply
from sparkinfer.api.anthropic.request import FIELD_NAMES, parse_messages_prompt, parse_messages_request, read_format
from sparkinfer.api.generation import Generation, MakeReply, NewRequestId
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.schema import Object
from sparkinfer.config import ServerConfig
from workers.http_exchange import Exchange, Response, json_response
from workers.http_generations import Generations
from workers.http_prompts import Prompts
from workers.http_text_pool import PromptQuestion


class AnthropicRoutes:
    """Handlers of /v1/messages and below."""

    def __init__(self, generations: Generations, prompts: Prompts, config: ServerConfig) -> None:
        self._generations = generations
        self._prompts = prompts
        self._strip_billing_line = config.strip_billing_line

    async def messages(self, exchange: Exchange) -> Response | None:
        """POST /v1/messages"""
        return await self._generations.run(exchange, self._plan, names=FIELD_NAMES)

    async def count_tokens(self, exchange: Exchange) -> Response:
        """POST /v1/messages/count_tokens"""
        self._generations.accepting()
        body = await exchange.json_object()
        parse = functools.partial(parse_messages_prompt, strip_billing_line=self._strip_billing_line)
        prompt, policy = await exchange.on_body(parse, body)
        encoded = await self._prompts.encode(PromptQuestion(prompt, policy, read_format(body)))
        return json_response({"input_tokens": len(encoded.token_ids)})

    def _plan(self, body: Object, info: ModelInfo, new_request_id: NewRequestId) -> tuple[Generation, MakeReply]:
        asked = parse_messages_request(body, info, new_request_id, strip_billing_line=self._strip_billing_line)
        make_reply = functools.partial(MessagesReply, model=asked.model, shows_thinking=asked.shows_thinking)
        return asked.generation, make_reply

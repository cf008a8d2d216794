"""The routes that look at prompts and generate nothing: tokenize, detokenize, apply-template.

Each is one question to a text worker.
"""

from __future__ import annotations

from typing import Any

from ipc.messages import Tokenized
from sparkinfer.api.chat import parse_chat_prompt
from sparkinfer.api.completions import parse_prompts
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.response_format import read_output_format
from sparkinfer.api.sampling import read_token_ids
from sparkinfer.api.schema import Object, as_list, fail, read_bool
from sparkinfer.api.template_kwargs import read_thinking
from sparkinfer.api.tools import read_tool_policy
from workers.http_answer import TokenAnswer
from workers.http_exchange import Exchange, Response, json_response
from workers.http_generations import Generations, RequestIds
from workers.http_text_pool import PromptQuestion, TextPool

MAX_TOKEN_IDS = 1 << 20  # of one detokenize request


class Prompts:
    """Handlers of POST routes that need a text worker and no engine."""

    def __init__(self, generations: Generations, pool: TextPool, request_ids: RequestIds) -> None:
        """generations: knows whether requests are taken."""
        self._generations = generations
        self._pool = pool
        self._request_ids = request_ids

    async def tokenize(self, exchange: Exchange) -> Response:
        """POST /v1/tokenize: tokens of a chat body or of `prompt`; ids and pieces where they are asked for."""
        info = self._generations.accepting()
        body = await exchange.json_object()
        with_ids = read_bool(body, "return_token_ids", False)
        with_pieces = read_bool(body, "return_pieces", False)
        question = await exchange.on_body(_read_question, body, info)
        encoded = await self.encode(question, with_pieces=with_pieces)
        document = _limits(info, encoded)
        if with_ids or with_pieces:
            document["token_ids"] = encoded.token_ids
        if with_pieces:
            document["pieces"] = [_piece(*pair) for pair in zip(encoded.token_ids, encoded.pieces)]
        return json_response(document)

    async def apply_template(self, exchange: Exchange) -> Response:
        """POST /v1/apply-template: the text that the model would read for a chat body."""
        info = self._generations.accepting()
        body = await exchange.json_object()
        encoded = await self.encode(await exchange.on_body(_read_chat, body), with_text=True)
        return json_response({"prompt": encoded.text, **_limits(info, encoded)})

    async def detokenize(self, exchange: Exchange) -> Response:
        """POST /v1/detokenize: the text of `token_ids` (or `tokens`)."""
        info = self._generations.accepting()
        body = await exchange.json_object()
        key = "tokens" if body.get("token_ids") is None and body.get("tokens") is not None else "token_ids"
        if key == "token_ids" and body.get("tokens") is not None:
            fail("tokens", "must not be given beside token_ids")
        values = as_list(body.get(key), key)
        if len(values) > MAX_TOKEN_IDS:
            fail(key, f"must have at most {MAX_TOKEN_IDS} ids, got {len(values)}")
        token_ids = await exchange.on_body(read_token_ids, values, info.vocab_size, key)
        skip_special = read_bool(body, "skip_special_tokens", False)
        answer = TokenAnswer()
        self._pool.decode(answer, self._request_ids.new(), token_ids, skip_special)
        decoded = await answer.tokenized
        return json_response({"text": decoded.text, "tokens": len(token_ids), "model": info.model})

    async def encode(
        self, question: PromptQuestion, *, with_text: bool = False, with_pieces: bool = False
    ) -> Tokenized:
        """What a text worker makes of a prompt; RequestError where its template refuses it."""
        answer = TokenAnswer()
        self._pool.encode(answer, self._request_ids.new(), question, with_text=with_text, with_pieces=with_pieces)
        return await answer.tokenized


def _read_question(body: Object, info: ModelInfo) -> PromptQuestion:
    if body.get("messages") is None and body.get("prompt") is not None:
        prompts = parse_prompts(body["prompt"], info)
        if len(prompts) != 1:
            fail("prompt", "must be one prompt")
        return PromptQuestion(prompts[0])
    if body.get("prompt") is not None:
        fail("prompt", "must not be given beside messages")
    return _read_chat(body)


def _read_chat(body: Object) -> PromptQuestion:
    prompt = parse_chat_prompt(body, read_thinking(body))
    return PromptQuestion(prompt, read_tool_policy(body, prompt.tools), read_output_format(body))


def _limits(info: ModelInfo, encoded: Tokenized) -> dict[str, Any]:
    return {
        "tokens": len(encoded.token_ids),
        "max_context": info.max_model_len,
        "max_output_tokens": info.max_output_tokens,
        "model": info.model,
    }


def _piece(token_id: int, piece: bytes) -> dict[str, Any]:
    """The text may have U+FFFD in it; the bytes are exact."""
    return {"id": token_id, "piece": piece.decode("utf-8", "replace"), "bytes": list(piece)}

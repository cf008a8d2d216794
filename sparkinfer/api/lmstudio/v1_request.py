"""POST /api/v1/chat: body to Request. Knows neither the answer's shape (v1_reply.py) nor where chats are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkinfer.api.field_names import FieldNames
from sparkinfer.api.generation import Generation, NewRequestId
from sparkinfer.api.model_facts import check_model_name
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.responses.conversation import Conversation
from sparkinfer.api.sampling import INT32_MAX, read_sampling
from sparkinfer.api.schema import (
    Object,
    as_list,
    as_object,
    as_str,
    fail,
    join,
    read_bool,
    read_choice,
    read_int,
    read_list,
    read_str,
)  # fmt: skip
from sparkinfer.request import ChatPrompt, Request

FIELD_NAMES = FieldNames(
    (r"messages(\[\d+\])?", "input"), (r"max_tokens", "max_output_tokens"), (r"repetition_penalty", "repeat_penalty")
)

Items = list[dict[str, Any]]

_SHARED = ("temperature", "top_p", "top_k", "min_p", "seed")
_REASONING: dict[str, dict[str, Any]] = {
    "off": {"enable_thinking": False},
    "on": {"enable_thinking": True},
    **{level: {"enable_thinking": True, "reasoning_effort": level} for level in ("low", "medium", "high")},
}


@dataclass(frozen=True, slots=True)
class LmStudioChat:
    """What a body asks for. items: the whole chat, as input items of the Responses API, to be stored.

    response: what is stored with the answer, so that it can be read as one of the Responses API
    """

    generation: Generation
    items: Items
    response: dict[str, Any]
    store: bool


def parse_v1_chat(
    body: Object, info: ModelInfo, new_request_id: NewRequestId, find_history: Callable[[str], Items]
) -> LmStudioChat:
    """RequestError names the field that is wrong; unknown keys are ignored."""
    model = read_str(body, "model")
    if not model:
        fail("model", "is required", code="missing_required_parameter")
    check_model_name(info, model)
    if read_list(body, "integrations"):
        fail("integrations", "this server calls no plugins and no other servers")
    read_int(body, "context_length", 1, INT32_MAX)
    previous = read_str(body, "previous_response_id")
    items = [*(find_history(previous) if previous is not None else []), _read_input(body)]
    conversation = Conversation(read_str(body, "system_prompt") or "")
    for item in items:
        conversation.add(item, "input")
    level = read_choice(body, "reasoning", tuple(_REASONING))
    prompt = ChatPrompt(messages=conversation.finish("input"), template_kwargs=_REASONING[level] if level else {})
    request = Request(request_id=new_request_id(), prompt=prompt, sampling=read_sampling(_renamed(body), info, None))
    generation = Generation((request,), read_bool(body, "stream", False), True)
    return LmStudioChat(generation, items, _response(body, info), read_bool(body, "store", True))


def _response(body: Object, info: ModelInfo) -> dict[str, Any]:
    return {
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("system_prompt"),
        "metadata": {},
        "model": info.model,
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "store": True,
        "tool_choice": "none",
        "tools": [],
    }


def _read_input(body: Object) -> dict[str, Any]:
    """The user's message: a text, or texts in order."""
    value = body.get("input")
    if value is None:
        fail("input", "is required", code="missing_required_parameter")
    texts = []
    if isinstance(value, str):
        texts = [value]
    else:
        for i, part in enumerate(as_list(value, "input")):
            texts.append(_read_part(as_object(part, f"input[{i}]"), f"input[{i}]"))
    if not texts:
        fail("input", "must have at least one part")
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text} for text in texts]}


def _read_part(part: Object, path: str) -> str:
    kind = read_str(part, "type", path)
    if kind == "image":
        fail(path, "this model cannot see: images are not supported")
    if kind not in ("text", "message"):
        fail(join(path, "type"), f"must be 'text', got {kind and kind[:64]!r}")
    key = "content" if part.get("content") is not None else "text"
    return as_str(part.get(key), join(path, key))


def _renamed(body: Object) -> dict[str, Any]:
    """Sampling controls under the names that every surface shares."""
    shared: dict[str, Any] = {key: body.get(key) for key in _SHARED}
    return shared | {"max_tokens": body.get("max_output_tokens"), "repetition_penalty": body.get("repeat_penalty")}

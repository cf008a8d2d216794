"""POST /api/chat and /api/generate: body to Request.

Options that steer how Ollama loads a model (num_gpu, num_thread and so on) have no effect, and neither has num_ctx: the
context is the server's. Knows neither the answer's shape (reply.py) nor any process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sparkinfer.api.field_names import FieldNames
from sparkinfer.api.generation import Generation, NewRequestId
from sparkinfer.api.model_facts import check_model_name
from sparkinfer.api.models import MAX_TOP_LOGPROBS, ModelInfo
from sparkinfer.api.ollama.messages import read_messages, read_tools, refuse_images
from sparkinfer.api.response_format import json_schema_format
from sparkinfer.api.sampling import read_sampling, read_stop
from sparkinfer.api.schema import (
    Object,
    as_object,
    fail,
    read_bool,
    read_int,
    read_list,
    read_object,
    read_str,
    type_name,
)  # fmt: skip
from sparkinfer.request import ChatPrompt, JsonObjectFormat, Message, OutputFormat, Prompt, Request, TextPrompt
from sparkinfer.sampling_params import SamplingParams

CHAT_NAMES = FieldNames(
    (r"response_format\.json_schema\.schema|format\.schema", "format"),
    (r"repetition_penalty", "options.repeat_penalty"),
    (r"max_tokens", "options.num_predict"),
    (r"(temperature|top_k|top_p|min_p|presence_penalty|frequency_penalty|logit_bias|seed|stop)", r"options.\1"),
)
GENERATE_NAMES = FieldNames((r"messages(\[\d+\])?", "prompt"), *CHAT_NAMES.pairs)

_LEVELS = ("low", "medium", "high", "max")
_RENAMED = {"repeat_penalty": "repetition_penalty"}
_SHARED = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "logit_bias")


def check_model(body: Object, info: ModelInfo) -> None:
    """RequestError: 400 for a body that names no model, 404 for another one than ours."""
    name = read_str(body, "model") or read_str(body, "name")
    if not name:
        fail("model", "is required")
    check_model_name(info, name)


def is_load(body: Object) -> bool:
    """The body asks for no answer: it loads the model, or with keep_alive 0 unloads it. It stays as it is."""
    return not body.get("messages") and not body.get("prompt")


def parse_ollama_chat(body: Object, info: ModelInfo, new_request_id: NewRequestId) -> Generation:
    """RequestError names the field that is wrong."""
    check_model(body, info)
    prompt = parse_ollama_prompt(body)
    return _generation(body, info, new_request_id, prompt)


def parse_ollama_prompt(body: Object) -> ChatPrompt:
    """Messages, tools and thinking of /api/chat."""
    return ChatPrompt(
        messages=read_messages(body.get("messages")),
        tools=read_tools(body),
        template_kwargs=_read_think(body),
        checks_earlier_calls=False,
    )


def parse_ollama_generate(body: Object, info: ModelInfo, new_request_id: NewRequestId) -> Generation:
    """RequestError names the field that is wrong."""
    check_model(body, info)
    text = read_str(body, "prompt") or ""
    refuse_images(body, "")
    for key in ("suffix", "template"):
        if read_str(body, key):
            fail(key, "is not supported")
    if read_list(body, "context"):
        fail("context", "is not supported; send the conversation to /api/chat")
    system = read_str(body, "system")
    prompt: Prompt
    if read_bool(body, "raw", False):
        prompt = TextPrompt(text=text)
    else:
        user = Message(role="user", content=text)
        messages = (Message(role="system", content=system), user) if system else (user,)
        prompt = ChatPrompt(messages=messages, template_kwargs=_read_think(body))
    return _generation(body, info, new_request_id, prompt)


def _generation(body: Object, info: ModelInfo, new_request_id: NewRequestId, prompt: Prompt) -> Generation:
    options = read_object(body, "options") or {}
    request = Request(
        request_id=new_request_id(),
        prompt=prompt,
        sampling=_read_options(options, info, _read_logprobs(body)),
        stop=read_stop(options, max_stops=16),
        output_format=_read_format(body.get("format")),
    )
    return Generation((request,), read_bool(body, "stream", True), True)


def _read_options(options: Object, info: ModelInfo, logprobs: int | None) -> SamplingParams:
    """Ollama's names in ours. Negative numbers stand for "as you like"."""
    shared: dict[str, Any] = {key: options.get(key) for key in _SHARED}
    shared |= {ours: options.get(theirs) for theirs, ours in _RENAMED.items()}
    shared["max_tokens"] = _positive(options, "num_predict")
    shared["seed"] = _positive(options, "seed", low=0)
    shared["top_k"] = _positive(options, "top_k", low=0)
    return read_sampling(shared, info, logprobs)


def _positive(options: Mapping[str, Any], key: str, low: int = 1) -> int | None:
    value = read_int(options, key, -(2**63), 2**63 - 1, "options")
    return None if value is None or value < low else min(value, 2**31 - 1) if key != "seed" else value


def _read_logprobs(body: Object) -> int | None:
    top = read_int(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    return (top or 0) if read_bool(body, "logprobs", False) else None


def _read_think(body: Object) -> dict[str, Any]:
    """think: true, false, or how much."""
    think = body.get("think")
    if think is None or think == "":
        return {}
    if isinstance(think, bool):
        return {"enable_thinking": think}
    if think not in _LEVELS:
        fail("think", f"must be a boolean or one of {', '.join(_LEVELS)}")
    return {"enable_thinking": True, "reasoning_effort": "xhigh" if think == "max" else think}


def _read_format(value: Any) -> OutputFormat | None:
    if value is None or value == "":
        return None
    if value == "json":
        return JsonObjectFormat()
    if not isinstance(value, dict):
        fail("format", f"must be 'json' or a JSON schema, not {type_name(value)}")
    return json_schema_format({"name": "answer", "schema": as_object(value, "format")}, "format")


def load_reply(body: Object, info: ModelInfo, created_at: str, *, is_chat: bool) -> bytes:
    """The answer to a body that asks for none."""
    reason = "unload" if body.get("keep_alive") in (0, "0", "0s") else "load"
    document: dict[str, Any] = {"model": body.get("model") or info.model, "created_at": created_at}
    if is_chat:
        document["message"] = {"role": "assistant", "content": ""}
    else:
        document["response"] = ""
    return msgspec.json.encode(document | {"done": True, "done_reason": reason})

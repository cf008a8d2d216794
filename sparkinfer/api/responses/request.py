"""POST /v1/responses: body to Request. Knows neither the answer's shape (reply.py) nor where responses are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkinfer.api.field_names import FieldNames
from sparkinfer.api.generation import Generation, NewRequestId
from sparkinfer.api.models import MAX_TOP_LOGPROBS, ModelInfo
from sparkinfer.api.response_format import SCHEMA_KEYS, json_schema_format
from sparkinfer.api.responses.conversation import Conversation
from sparkinfer.api.responses.late_changes import LateChanges
from sparkinfer.api.responses.tools import ClientTool, ToolBox, read_tools
from sparkinfer.api.sampling import INT32_MAX, read_priority, read_sampling
from sparkinfer.api.schema import (
    Object,
    as_list,
    as_object,
    as_str,
    fail,
    read_bool,
    read_choice,
    read_int,
    read_list,
    read_object,
    read_str,
)  # fmt: skip
from sparkinfer.api.template_kwargs import EFFORTS, read_thinking
from sparkinfer.request import ChatPrompt, JsonObjectFormat, OutputFormat, Request, ToolPolicy

Items = list[dict[str, Any]]
FindHistory = Callable[[str], Items]  # items up to and with a stored response; RequestError if there is none

FIELD_NAMES = FieldNames(
    (r"response_format\.json_schema", "text.format"),
    (r"messages(\[\d+\])?", "input"),
    (r"max_tokens", "max_output_tokens"),
)

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_MUST_BE_ABSENT = {
    "conversation": "conversations are not kept here; send the whole of it as input",
    "prompt": "there are no stored prompts here",
}


@dataclass(frozen=True, slots=True)
class ResponsesPrompt:
    """What becomes part of the prompt. items: the whole input, earlier turns first, as it came."""

    prompt: ChatPrompt
    policy: ToolPolicy
    output_format: OutputFormat | None
    box: ToolBox
    items: Items


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """What a body asks for, and what its response repeats of it."""

    generation: Generation
    items: Items
    echoed: dict[str, Any]
    tools: dict[str, ClientTool]
    wants_encrypted_reasoning: bool
    store: bool


def parse_responses_request(
    body: Object, info: ModelInfo, new_request_id: NewRequestId, find_history: FindHistory
) -> ResponsesRequest:
    """RequestError(400) names the field that is wrong; unknown top-level keys are ignored."""
    _check_unsupported(body)
    asked = parse_responses_prompt(body, find_history)
    include = [as_str(value, f"include[{i}]") for i, value in enumerate(read_list(body, "include") or [])]
    top_logprobs = read_int(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    logprobs = (top_logprobs or 0) if LOGPROBS in include or top_logprobs else None
    sampling = read_sampling(_sampling_body(body), info, logprobs)
    request = Request(
        request_id=new_request_id(),
        prompt=asked.prompt,
        sampling=sampling,
        priority=read_priority(body),
        tool_policy=asked.policy,
        output_format=asked.output_format,
    )
    skipped = tuple(sorted(asked.box.skipped))
    echoed = _echoed(body, info) | {
        "temperature": sampling.temperature, "top_p": sampling.top_p, "top_logprobs": top_logprobs or 0,
    }  # fmt: skip
    return ResponsesRequest(
        generation=Generation(
            (request,), read_bool(body, "stream", False), True, skipped_tools=skipped, tool_paths=tuple(asked.box.paths)
        ),
        items=asked.items,
        echoed=echoed,
        tools=asked.box.by_name,
        wants_encrypted_reasoning=ENCRYPTED_REASONING in include,
        store=read_bool(body, "store", False),
    )


def parse_responses_prompt(body: Object, find_history: FindHistory) -> ResponsesPrompt:
    """The conversation: instructions, the turns before `previous_response_id` and with it, and the input."""
    previous = read_str(body, "previous_response_id")
    history = find_history(previous) if previous is not None else []
    items = _read_input(body)
    located = [(item, f"previous_response_id[{i}]") for i, item in enumerate(history)]
    located += [(item, f"input[{i}]") for i, item in enumerate(items)]
    changes = LateChanges(located)
    body = changes.applied_to(body)
    box, policy = read_tools(body, changes.tools)
    conversation = Conversation(read_str(body, "instructions") or "")
    for item, path in located:
        conversation.add(item, path)
    messages = conversation.finish("input")
    if not any(message.role != "system" for message in messages) and not items:
        fail("input", "is required")
    prompt = ChatPrompt(
        messages=messages,
        tools=tuple(box.tools),
        template_kwargs=_read_thinking(body),
        checks_earlier_calls=False,  # an agent's history outlives its tools, and other models made parts of it
    )
    return ResponsesPrompt(prompt, policy, _read_format(body), box, [*history, *items])


def _read_input(body: Object) -> Items:
    value = body.get("input")
    if value is None:
        if body.get("previous_response_id") is None:
            fail("input", "is required")
        return []
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    items = as_list(value, "input")
    if not items:
        fail("input", "must have at least one item")
    return [dict(as_object(item, f"input[{i}]")) for i, item in enumerate(items)]


def _check_unsupported(body: Object) -> None:
    for key, reason in _MUST_BE_ABSENT.items():
        if body.get(key) is not None:
            fail(key, reason)
    if read_bool(body, "background", False):
        fail("background", "responses are made while the client waits")
    for key in ("model", "user", "safety_identifier", "prompt_cache_key", "service_tier"):
        read_str(body, key)
    read_choice(body, "truncation", ("auto", "disabled"))
    read_object(body, "metadata")


def _sampling_body(body: Object) -> dict[str, Any]:
    """The body under the names that every surface shares."""
    read_int(body, "max_output_tokens", 1, INT32_MAX)
    return {**body, "max_tokens": body.get("max_output_tokens"), "max_completion_tokens": None}


def _read_thinking(body: Object) -> dict[str, Any]:
    reasoning = read_object(body, "reasoning") or {}
    effort = read_choice(reasoning, "effort", EFFORTS, "reasoning")
    keys = ("chat_template_kwargs", "enable_thinking")
    return read_thinking({key: body.get(key) for key in keys} | {"reasoning_effort": effort}).template_kwargs


def _read_format(body: Object) -> OutputFormat | None:
    """text.format"""
    value = read_object(read_object(body, "text") or {}, "format", "text")
    if value is None:
        return None
    path = "text.format"
    kind = read_choice(value, "type", ("text", "json_object", "json_schema"), path)
    if kind is None:
        fail(f"{path}.type", "is required")
    if kind == "json_object":
        return JsonObjectFormat()
    if kind == "text":
        return None
    return json_schema_format({key: value[key] for key in SCHEMA_KEYS if key in value}, path)


def _echoed(body: Object, info: ModelInfo) -> dict[str, Any]:
    """What a response repeats of its request."""
    reasoning = read_object(body, "reasoning") or {}
    text = read_object(body, "text") or {}
    choice = body.get("tool_choice")
    return {
        "background": False,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": None,
        "metadata": body.get("metadata") or {},
        "model": body.get("model") or info.model,
        "parallel_tool_calls": read_bool(body, "parallel_tool_calls", True),
        "previous_response_id": body.get("previous_response_id"),
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "safety_identifier": body.get("safety_identifier"),
        "service_tier": "default",
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": text.get("verbosity") or "medium"},
        "tool_choice": "auto" if choice is None else choice,
        "tools": body.get("tools") or [],
        "truncation": "disabled",
        "user": body.get("user"),
    }

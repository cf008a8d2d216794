"""POST /v1/messages and /v1/messages/count_tokens: body to Request.

Knows neither the answer's shape (reply.py) nor any process. What only Anthropic's own servers act on (metadata,
cache_control, context_management, betas and the like) is accepted and without effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkinfer.api.anthropic.conversation import read_conversation
from sparkinfer.api.anthropic.errors import NO_THREADS
from sparkinfer.api.anthropic.tools import read_tools, schema_paths, skipped_kinds
from sparkinfer.api.field_names import FieldNames
from sparkinfer.api.generation import Generation, NewRequestId
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.response_format import json_schema_format
from sparkinfer.api.sampling import INT32_MAX, read_priority, read_sampling, read_stop_list
from sparkinfer.api.schema import (
    Object,
    as_object,
    fail,
    read_bool,
    read_choice,
    read_int,
    read_list,
    read_object,
    read_str,
)  # fmt: skip
from sparkinfer.request import ChatPrompt, OutputFormat, Request, ToolPolicy

FIELD_NAMES = FieldNames(
    (r"response_format\.json_schema", "output_config.format"),
    (r"messages\[\d+\]", "messages"),
)
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
MAX_STOP_SEQUENCES = 64
_THINKS = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """What a body asks for. shows_thinking: the text of the reasoning goes out, not just that there was some."""

    generation: Generation
    model: str
    shows_thinking: bool


def parse_messages_request(
    body: Object, info: ModelInfo, new_request_id: NewRequestId, *, strip_billing_line: bool
) -> MessagesRequest:
    """RequestError(400) names the field that is wrong; unknown top-level keys are ignored."""
    model = read_str(body, "model")
    if not model:
        fail("model", "is required")
    if read_int(body, "max_tokens", 1, INT32_MAX) is None:
        fail("max_tokens", "is required")
    prompt, policy = parse_messages_prompt(body, strip_billing_line=strip_billing_line)
    thinking = read_object(body, "thinking") or {}
    request = Request(
        request_id=new_request_id(),
        prompt=prompt,
        sampling=read_sampling(body, info, None),
        stop=read_stop_list(read_list(body, "stop_sequences") or [], "stop_sequences", MAX_STOP_SEQUENCES),
        priority=read_priority(body),
        tool_policy=policy,
        output_format=read_format(body),
    )
    generation = Generation(
        (request,), read_bool(body, "stream", False), True, skipped_tools=skipped_kinds(body),
        tool_paths=schema_paths(body),
    )  # fmt: skip
    return MessagesRequest(generation, model, thinking.get("display") != "omitted")


def parse_messages_prompt(body: Object, *, strip_billing_line: bool) -> tuple[ChatPrompt, ToolPolicy]:
    """Everything that becomes part of the prompt, and what is said about calls."""
    if body.get("thread") is not None:
        fail("thread", "threads are not kept here; send the whole conversation as messages", code=NO_THREADS)
    tools, policy = read_tools(body)
    messages = read_conversation(body, strip_billing_line)
    if read_list(body, "mcp_servers"):
        fail("mcp_servers", "this server calls no other servers")
    last = messages[-1]
    continues = last.role == "assistant" and not last.tool_calls
    prompt = ChatPrompt(
        messages=messages,
        tools=tools,
        template_kwargs=_read_thinking(body),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        checks_earlier_calls=False,  # an agent's history outlives its tools, and other models made parts of it
    )
    return prompt, policy


def _read_thinking(body: Object) -> dict[str, Any]:
    """thinking and output_config.effort as the template's keyword arguments; budgets are not kept to."""
    kwargs: dict[str, Any] = {}
    thinking = read_object(body, "thinking")
    if thinking is not None:
        kind = read_choice(thinking, "type", tuple(_THINKS), "thinking")
        if kind is None:
            fail("thinking.type", "is required")
        kwargs["enable_thinking"] = _THINKS[kind]
    config = read_object(body, "output_config") or {}
    effort = read_choice(config, "effort", EFFORTS, "output_config")
    if effort == "none":
        kwargs["enable_thinking"] = False
    elif effort is not None and kwargs.get("enable_thinking") is not False:
        kwargs["reasoning_effort"] = "xhigh" if effort == "max" else effort
    return kwargs


def read_format(body: Object) -> OutputFormat | None:
    """output_config.format, or output_format as it was called before."""
    config = read_object(body, "output_config") or {}
    path = "output_config.format" if config.get("format") is not None else "output_format"
    value = config.get("format") if config.get("format") is not None else body.get("output_format")
    if value is None:
        return None
    output = as_object(value, path)
    if read_choice(output, "type", ("json_schema",), path) is None:
        fail(f"{path}.type", "is required")
    return json_schema_format({"name": "answer", "strict": True, "schema": output.get("schema")}, path)

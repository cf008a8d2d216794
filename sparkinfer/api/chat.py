"""POST /v1/chat/completions and the chat form of /v1/tokenize: body to Request.

Knows neither the answer's shape (chat_reply.py) nor any process.
"""

from __future__ import annotations

from sparkinfer.api.generation import Generation, NewRequestId, read_stream
from sparkinfer.api.messages import parse_messages
from sparkinfer.api.models import MAX_TOP_LOGPROBS, ModelInfo
from sparkinfer.api.sampling import read_choices, read_priority, read_sampling, read_stop
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
)
from sparkinfer.api.template_kwargs import Thinking, read_thinking
from sparkinfer.request import ChatPrompt, Request


def parse_chat(body: Object, info: ModelInfo, new_request_id: NewRequestId) -> Generation:
    """The generation that `body` asks for; RequestError(400) names the field that is wrong.

    Unknown top-level keys, and the request's `model`, are ignored: there is one model.
    """
    thinking = read_thinking(body)
    prompt = parse_chat_prompt(body, thinking)
    _refuse_response_format(body)
    _check_ignored(body)
    stream, include_usage = read_stream(body)
    request = Request(
        request_id=new_request_id(),
        prompt=prompt,
        sampling=read_sampling(body, info, _read_logprobs(body)),
        n=read_choices(body),
        stop=read_stop(body),
        priority=read_priority(body),
    )
    return Generation((request,), stream, include_usage, thinking.exclude_reasoning)


def parse_chat_prompt(body: Object, thinking: Thinking) -> ChatPrompt:
    """Messages and everything else that changes how they are rendered."""
    messages = parse_messages(body.get("messages"))
    _refuse_tools(body)
    continue_final = read_bool(body, "continue_final_message", False)
    add_generation_prompt = read_bool(body, "add_generation_prompt", not continue_final)
    if continue_final and add_generation_prompt:
        fail("add_generation_prompt", "must be false when continue_final_message is true")
    if continue_final and messages[-1].role != "assistant":
        fail("continue_final_message", "needs an assistant message at the end")
    return ChatPrompt(
        messages=messages,
        template_kwargs=thinking.template_kwargs,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final,
    )


def _read_logprobs(body: Object) -> int | None:
    wanted = read_bool(body, "logprobs", False)
    top = read_int(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not wanted:
        fail("top_logprobs", "needs logprobs to be true")
    return (top or 0) if wanted else None


def _refuse_tools(body: Object) -> None:
    """Tools may be listed with tool_choice "none", which keeps them out of the prompt, and not be called."""
    tools = read_list(body, "tools") or []
    for i, tool in enumerate(tools):
        as_object(tool, f"tools[{i}]")
    choice = body.get("tool_choice")
    if choice is not None and not isinstance(choice, dict):
        choice = read_choice(body, "tool_choice", ("none", "auto", "required"))
    if tools and choice != "none":
        fail("tools", "tool calling is not supported yet")
    read_bool(body, "parallel_tool_calls", True)


def _refuse_response_format(body: Object) -> None:
    response_format = read_object(body, "response_format")
    if response_format is None:
        return
    kind = read_choice(response_format, "type", ("text", "json_object", "json_schema"), "response_format")
    if kind is None:
        fail("response_format.type", "is required")
    if kind != "text":
        fail("response_format", f"type {kind!r} is not supported yet")


def _check_ignored(body: Object) -> None:
    """Fields without effect here are still held to their type, so that a client's mistake shows."""
    read_object(body, "metadata")
    read_bool(body, "store", False)
    for key in ("user", "service_tier", "model"):
        read_str(body, key)

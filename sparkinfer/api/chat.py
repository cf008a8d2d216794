"""POST /v1/chat/completions and the chat form of /v1/tokenize: body to Request.

Knows neither the answer's shape (chat_reply.py) nor any process.
"""

from __future__ import annotations

from sparkinfer.api.generation import Generation, NewRequestId, read_stream
from sparkinfer.api.messages import parse_messages
from sparkinfer.api.models import MAX_TOP_LOGPROBS, ModelInfo
from sparkinfer.api.response_format import read_output_format
from sparkinfer.api.sampling import read_choices, read_priority, read_sampling, read_stop
from sparkinfer.api.schema import (
    Object,
    fail,
    read_bool,
    read_int,
    read_object,
    read_str,
)
from sparkinfer.api.template_kwargs import Thinking, read_thinking
from sparkinfer.api.tools import check_called_tools, parse_tools, read_tool_policy
from sparkinfer.api.unsupported import refuse_unsupported
from sparkinfer.request import ChatPrompt, Request


def parse_chat(body: Object, info: ModelInfo, new_request_id: NewRequestId) -> Generation:
    """The generation that `body` asks for; RequestError(400) names the field that is wrong.

    Unknown top-level keys, and the request's `model`, are ignored: there is one model.
    """
    thinking = read_thinking(body)
    prompt = parse_chat_prompt(body, thinking)
    _check_ignored(body)
    stream, include_usage = read_stream(body)
    request = Request(
        request_id=new_request_id(),
        prompt=prompt,
        sampling=read_sampling(body, info, _read_logprobs(body)),
        n=read_choices(body),
        stop=read_stop(body),
        priority=read_priority(body),
        tool_policy=read_tool_policy(body, prompt.tools),
        output_format=read_output_format(body),
    )
    return Generation((request,), stream, include_usage, thinking.exclude_reasoning)


def parse_chat_prompt(body: Object, thinking: Thinking) -> ChatPrompt:
    """Messages and everything else that changes how they are rendered."""
    messages = parse_messages(body.get("messages"))
    refuse_unsupported(body)
    tools = parse_tools(body)
    check_called_tools(messages, tools)
    continue_final = read_bool(body, "continue_final_message", False)
    add_generation_prompt = read_bool(body, "add_generation_prompt", not continue_final)
    if continue_final and add_generation_prompt:
        fail("add_generation_prompt", "must be false when continue_final_message is true")
    if continue_final and messages[-1].role != "assistant":
        fail("continue_final_message", "needs an assistant message at the end")
    return ChatPrompt(
        messages=messages,
        tools=tools,
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


def _check_ignored(body: Object) -> None:
    """Fields without effect here are still held to their type, so that a client's mistake shows."""
    read_object(body, "metadata")
    read_bool(body, "store", False)
    for key in ("user", "service_tier", "model"):
        read_str(body, key)

"""What Claude Code and Codex need of a server: the shapes of their requests, replayed."""

from __future__ import annotations

import json
import secrets
from typing import Any

from sparkinfer.doctor.anthropic_stream import check_messages_stream
from sparkinfer.doctor.openai_checks import QUESTION, WEATHER, too_long
from sparkinfer.doctor.responses_stream import check_responses_stream
from sparkinfer.doctor.session import Session, expect, expect_keys, expect_no, shortened

MESSAGES = "/v1/messages?beta=true"
RESPONSES = "/v1/responses"
_CACHED = {"type": "ephemeral"}
_TOOL = {"name": "get_weather", "description": "Weather of a city.", "input_schema": WEATHER["parameters"]}
_FUNCTION = {"type": "function", "strict": False, **WEATHER}
_ANTHROPIC = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,mid-conversation-system-2026-04-07",
}


def _claude_body(**fields: Any) -> dict[str, Any]:
    """As Claude Code asks: a system line that never repeats, blocks, marks, betas."""
    line = f"x-anthropic-billing-header: cc_version=2.1.197; cc_entrypoint=cli; cch={secrets.token_hex(3)[:5]};"
    rules = "You are a coding agent. " + "Answer in one short sentence. " * 12
    return {
        "model": "claude-local",
        "max_tokens": 8,
        "system": [{"type": "text", "text": line}, {"type": "text", "text": rules, "cache_control": _CACHED}],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>Be kind.</system-reminder>"},
            {"type": "text", "text": "Say hello.", "cache_control": _CACHED},
        ]}],
        "tools": [_TOOL],
        "metadata": {"user_id": "user_1"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "stream": True,
    } | fields  # fmt: skip


def _expect_turn(session: Session, **fields: Any) -> None:
    """A stream that keeps its rules and comes to its end is the answer."""
    events = session.post(MESSAGES, _claude_body(**fields), _ANTHROPIC).events()
    expect_no(check_messages_stream(events))
    expect(events[-1].data["type"] == "message_stop", f"ends with {shortened(str(events[-1].data))}")


def claude_stream(session: Session) -> None:
    """a streamed turn: blocks in order, the prompt's size at the start"""
    _expect_turn(session)


def claude_key(session: Session) -> None:
    """the key may come as x-api-key"""
    headers = _ANTHROPIC | ({"authorization": "", "x-api-key": session.key} if session.key else {})
    reply = session.post(MESSAGES, _claude_body(stream=False), headers).json()
    expect_keys(reply, "id", "type", "role", "content", "model", "stop_reason", "usage")


def claude_count(session: Session) -> None:
    """count_tokens, with all that belongs to a turn"""
    body = {key: value for key, value in _claude_body().items() if key not in ("max_tokens", "stream", "metadata")}
    counted = session.post("/v1/messages/count_tokens?beta=true", body, _ANTHROPIC).json()
    expect(counted.get("input_tokens", 0) > 0, "no count")


def claude_late_system(session: Session) -> None:
    """a system message in mid-conversation"""
    messages = [
        {"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."},
        {"role": "system", "content": "Plan mode is on."}, {"role": "user", "content": "Go on."},
    ]  # fmt: skip
    _expect_turn(session, messages=messages)


def claude_history(session: Session) -> None:
    """thinking, a call and its result come back as they went out"""
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False,
              "content": [{"type": "text", "text": "18 C"}]}  # fmt: skip
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "sig"}, call]},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    _expect_turn(session, messages=messages)


def claude_call(session: Session) -> None:
    """a call that is forced comes as a tool_use block"""
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    forced = {"messages": QUESTION, "tool_choice": choice, "max_tokens": 128, "stream": False,
              "thinking": {"type": "disabled"}}  # fmt: skip
    reply = session.post(MESSAGES, _claude_body(**forced), _ANTHROPIC).json()
    calls = [block for block in reply["content"] if block["type"] == "tool_use"]
    expect(calls and reply["stop_reason"] == "tool_use", f"no call, stop_reason {reply['stop_reason']}")
    expect("city" in calls[0]["input"], "the input does not fit the schema")


def claude_cache(session: Session) -> None:
    """the prefix cache works although the system prompt's first line never repeats"""
    replies = [session.post(MESSAGES, _claude_body(stream=False), _ANTHROPIC).json() for _ in range(2)]
    expect(replies[1]["usage"]["cache_read_input_tokens"] > 0, "nothing was read from the cache the second time")


def claude_server_tools(session: Session) -> None:
    """tools that Anthropic runs are passed over"""
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    _expect_turn(session, tools=[_TOOL, search])


def claude_overflow(session: Session) -> None:
    """a prompt that is too long is told in the words that start a compaction"""
    messages = [{"role": "user", "content": too_long(session)}]
    answer = session.send("POST", MESSAGES, _claude_body(messages=messages), _ANTHROPIC)
    expect(answer.status == 400, f"status {answer.status}")
    error = answer.json()["error"]
    expect(error["type"] == "invalid_request_error" and "prompt is too long" in error["message"], str(error)[:120])


def _codex_body(**fields: Any) -> dict[str, Any]:
    """As Codex asks: every kind of tool, nothing stored, reasoning that it carries itself."""
    return {
        "model": "local",
        "instructions": "You are a coding agent running in a terminal.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hello."}]},
        ],
        "tools": [
            _FUNCTION,
            {"type": "custom", "name": "apply_patch", "description": "Edit files.",
             "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
            {"type": "namespace", "name": "mcp__files__", "description": "Files.",
             "tools": [{"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}]},
            {"type": "web_search"}, {"type": "image_generation"}, {"type": "tool_search"},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread-1",
        "max_output_tokens": 8,
    } | fields  # fmt: skip


def _completed(session: Session, **fields: Any) -> dict[str, Any]:
    """The response at the end of a stream that kept its rules."""
    events = session.post(RESPONSES, _codex_body(**fields)).events()
    expect_no(check_responses_stream(events))
    expect(events[-1].data["type"] == "response.completed", f"ends with {shortened(str(events[-1].data))}")
    response: dict[str, Any] = events[-1].data["response"]
    return response


def codex_stream(session: Session) -> None:
    """a streamed turn with every kind of tool, to response.completed"""
    _completed(session)


def codex_length(session: Session) -> None:
    """an answer that ran out of tokens is completed, and says so"""
    response = _completed(session, max_output_tokens=1)
    expect(response["status"] == "incomplete", f"status {response['status']}")
    expect(response["incomplete_details"] == {"reason": "max_output_tokens"}, "no reason")


def codex_history(session: Session) -> None:
    """calls and outputs come back: freeform, namespaced, outputs as parts, reasoning"""
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA-of-another-server"},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "18 C"}]},
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
        {"type": "function_call", "call_id": "c3", "name": "read", "namespace": "mcp__files__", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c3", "output": "text"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Now stop."}]},
    ]
    _completed(session, input=items)


def codex_call(session: Session) -> None:
    """a call that is forced comes as a function_call item"""
    forced = {"tool_choice": {"type": "function", "name": "get_weather"}, "max_output_tokens": 128, "input": QUESTION,
              "reasoning": {"effort": "none"}}  # fmt: skip
    calls = [item for item in _completed(session, **forced)["output"] if item["type"] == "function_call"]
    expect(calls and "city" in json.loads(calls[0]["arguments"]), "no call that fits the schema")


def codex_overflow(session: Session) -> None:
    """a prompt that is too long has the code context_length_exceeded"""
    answer = session.send("POST", RESPONSES, _codex_body(input=too_long(session)))
    if answer.status == 200:
        code = answer.events()[-1].data["response"]["error"]["code"]
    else:
        code = answer.json()["error"]["code"]
    expect(code == "context_length_exceeded", f"code {code}")


CLAUDE_CODE = (claude_stream, claude_key, claude_count, claude_late_system, claude_history, claude_call, claude_cache,
               claude_server_tools, claude_overflow)  # fmt: skip
CODEX = (codex_stream, codex_length, codex_history, codex_call, codex_overflow)

"""Threads are not kept here: the stock client hears so in a way by which it goes on with whole conversations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import beta_tool

from sparkinfer.request import ChatPrompt, Request
from tests.api.app_server import AppServer
from tests.api.scripts import WEATHER, says


@beta_tool
def get_weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: Its name.
    """
    return f"18 C in {city}"


def calls_once(request: Request) -> Iterable[list[Any]]:
    assert isinstance(request.prompt, ChatPrompt)
    has_result = any(message.role == "tool" for message in request.prompt.messages)
    return says(("content", "Done."))(request) if has_result else says(WEATHER)(request)


def test_the_clients_own_tool_loop(app: AppServer) -> None:
    app.pool.script = calls_once
    with anthropic.Anthropic(base_url=app.url, api_key="none", max_retries=0, timeout=20) as client:
        runner = client.beta.messages.tool_runner(
            model="x", max_tokens=50, tools=[get_weather], messages=[{"role": "user", "content": "Weather?"}]
        )
        answers = [message.content[-1].type for message in runner]
    assert answers == ["tool_use", "text"]
    *_, last = [app.pool.submitted.get() for _ in range(app.pool.submitted.qsize())]
    assert [message.role for message in last.prompt.messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_x"}])
def test_a_thread_is_refused_and_never_ignored(http: httpx.Client, thread: dict[str, str]) -> None:
    body = {"model": "x", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}
    reply = http.post("/v1/messages", json=body | {"thread": thread})
    told = reply.json()["error"]
    assert (reply.status_code, told["type"]) == (400, "invalid_request_error")
    assert told["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert reply.json()["request_id"] == reply.headers["request-id"]
    assert http.post("/v1/messages", json=body | {"thread": None}).status_code == 200

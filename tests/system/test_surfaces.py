"""Every API through all processes: text, and a call under its grammar, with the stock clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import psutil
import pytest

from sparkinfer.doctor.anthropic_stream import check_messages_stream
from sparkinfer.doctor.ollama_stream import check_ollama_stream
from sparkinfer.doctor.responses_stream import check_responses_stream
from sparkinfer.doctor.sse_events import parse_events
from tests.system.harness import SCRIPTED, Server

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ASK = f"<<say>>Let me see.\n{CALL}<</say>><<say>>It is 18 C.<</say>>"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Weather of a city.", "parameters": PARAMETERS}


def test_anthropic(scripted_server: Server) -> None:
    with anthropic.Anthropic(base_url=scripted_server.url, api_key="none", max_retries=0, timeout=60) as client:
        tool = {"name": "get_weather", "description": "Weather of a city.", "input_schema": PARAMETERS}
        messages: list[Any] = [{"role": "user", "content": ASK}]
        body: dict[str, Any] = {"model": "m", "max_tokens": 200, "tools": [tool]}
        with client.messages.stream(messages=messages, **body) as stream:
            reply = stream.get_final_message()
        text, call = reply.content
        assert (text.text.strip(), call.name, call.input) == ("Let me see.", "get_weather", {"city": "Paris"})
        assert reply.stop_reason == "tool_use"
        assert reply.usage.input_tokens + reply.usage.cache_read_input_tokens == client.messages.count_tokens(
            model="m", messages=messages, tools=[tool]
        ).input_tokens
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "18 C"}
        messages += [reply.to_param(), {"role": "user", "content": [result]}]
        last = client.messages.create(messages=messages, **body)
        assert (last.content[0].text, last.stop_reason) == ("It is 18 C.", "end_turn")


def test_responses(scripted_server: Server) -> None:
    url = f"{scripted_server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        tool = {"type": "function", "strict": False, **FUNCTION}
        body: dict[str, Any] = {"model": "m", "tools": [tool], "store": True}
        first = client.responses.create(input=ASK, **body)
        call = next(item for item in first.output if item.type == "function_call")
        assert json.loads(call.arguments) == {"city": "Paris"}
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "18 C"}
        last = client.responses.create(input=[output], previous_response_id=first.id, **body)
        assert last.output_text == "It is 18 C."


def test_ollama(scripted_server: Server) -> None:
    client = ollama.Client(host=scripted_server.url, timeout=60)
    (name,) = [model.model for model in client.list().models]
    messages: list[Any] = [{"role": "user", "content": ASK}]
    tools = [{"type": "function", "function": FUNCTION}]
    lines = list(client.chat(name, messages, tools=tools, stream=True))
    (call,) = [call for line in lines for call in line.message.tool_calls or []]
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    assistant = {"role": "assistant", "content": "Let me see.", "tool_calls": [call.model_dump()]}
    messages += [assistant, {"role": "tool", "content": "18 C", "tool_name": "get_weather"}]
    last = client.chat(name, messages, tools=tools)
    assert (last.message.content, last.done_reason) == ("It is 18 C.", "stop")
    client._client.close()


@pytest.mark.parametrize(
    ("path", "body", "check"),
    [
        ("/v1/messages", {"model": "m", "max_tokens": 200, "stream": True}, check_messages_stream),
        ("/v1/responses", {"stream": True}, check_responses_stream),
        ("/api/chat", {"model": "default"}, None),
    ],
)
def test_streams_keep_the_rules(scripted_server: Server, path: str, body: dict[str, Any], check: Any) -> None:
    tool: dict[str, Any] = {
        "/v1/messages": {"name": "get_weather", "input_schema": PARAMETERS},
        "/v1/responses": {"type": "function", **FUNCTION},
        "/api/chat": {"type": "function", "function": FUNCTION},
    }[path]
    asked = {"input" if path == "/v1/responses" else "messages": [{"role": "user", "content": ASK}], "tools": [tool]}
    text = httpx.post(f"{scripted_server.url}{path}", json=body | asked, timeout=60).text
    problems = check_ollama_stream(text, is_chat=True) if check is None else check(parse_events(text))
    assert problems == []
    assert "get_weather" in text


def test_a_history_outlives_its_tools(scripted_server: Server) -> None:
    """Calls that the tools of now would not take, and calls of tools that are gone."""
    body = {
        "model": "m", "max_tokens": 5, "tools": [{"name": "get_weather", "input_schema": PARAMETERS}],
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "1", "name": "get_weather", "input": {}},
                {"type": "tool_use", "id": "2", "name": "gone", "input": {"x": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "no city", "is_error": True},
                {"type": "tool_result", "tool_use_id": "2", "content": "ok"}]},
        ],
    }  # fmt: skip
    assert httpx.post(f"{scripted_server.url}/v1/messages", json=body, timeout=60).status_code == 200


def test_facts_are_the_files_own(scripted_server: Server) -> None:
    shown = httpx.post(f"{scripted_server.url}/api/show", json={"model": "default"}, timeout=10).json()
    info = shown["model_info"]
    assert (info["general.architecture"], info["llama.block_count"]) == ("llama", 30)
    assert (info["llama.embedding_length"], info["llama.context_length"]) == (576, 2048)
    assert shown["details"]["parameter_size"] == "134.5M"
    (model,) = httpx.get(f"{scripted_server.url}/api/v1/models", timeout=10).json()["models"]
    assert 4 < model["quantization"]["bits_per_weight"] < 9


def test_stored_responses_survive_a_restart(embedded_model: Path, tmp_path: Path) -> None:
    settings = (*SCRIPTED, "model.max_model_len=512", "server.http_workers=2", f"server.responses_directory={tmp_path}")
    with Server(embedded_model, *settings) as server:
        stored = httpx.post(f"{server.url}/v1/responses", json={"input": ASK, "store": True}, timeout=60).json()["id"]
        for _ in range(8):  # whichever worker answers
            assert httpx.get(f"{server.url}/v1/responses/{stored}", timeout=10).status_code == 200
    with Server(embedded_model, *settings) as server:
        again = {"input": "Go on.", "previous_response_id": stored}
        assert httpx.post(f"{server.url}/v1/responses", json=again, timeout=60).status_code == 200
        assert httpx.delete(f"{server.url}/v1/responses/{stored}", timeout=10).json()["deleted"] is True


def test_a_damaged_store_costs_what_was_stored(embedded_model: Path, tmp_path: Path) -> None:
    settings = (*SCRIPTED, "model.max_model_len=512", f"server.responses_directory={tmp_path}")
    with Server(embedded_model, *settings) as server:
        body = {"input": ASK, "store": True}
        lost = httpx.post(f"{server.url}/v1/responses", json=body, timeout=60).json()["id"]
        for name in ("responses.sqlite", "responses.sqlite-wal"):
            (tmp_path / name).write_bytes(b"no database at all" * 500)
        worker = server.worker("http-0")
        worker.kill()
        psutil.wait_procs([worker], timeout=10)
        server.wait_ready_again()
        assert httpx.get(f"{server.url}/v1/responses/{lost}", timeout=10).status_code == 404
        kept = httpx.post(f"{server.url}/v1/responses", json=body, timeout=60).json()["id"]
        assert httpx.get(f"{server.url}/v1/responses/{kept}", timeout=10).json()["id"] == kept
        assert (tmp_path / "responses.sqlite.damaged").read_bytes().startswith(b"no database")

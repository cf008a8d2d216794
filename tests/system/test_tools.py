"""Tools and forms of output over the real service, with the stock client: what the model says is scripted.

The embedded model's template knows no tools, so they go in Hermes' form.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.system.harness import SCRIPTED, Server

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city – é",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
TOOLS: list[Any] = [WEATHER, NOW]
NAMED = {"type": "function", "function": {"name": "now"}}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
JSON_PERSON = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}


def call(name: str, arguments: Any = None) -> str:
    body = json.dumps({"name": name, "arguments": arguments or {}}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


PARIS = call("get_weather", {"city": 'Paris "</tool_call>" }', "days": 2})


@pytest.fixture(scope="module")
def server(embedded_model: Path) -> Iterator[Server]:
    with Server(embedded_model, *SCRIPTED, "model.max_model_len=4096") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as made:
        yield made


def saying(*texts: str) -> list[Any]:
    return [{"role": "user", "content": "".join(f"<<say>>{text}<</say>>" for text in texts)}]


def ask(client: OpenAI, said: str, **fields: Any) -> Any:
    body = {"model": "m", "messages": saying(said), "tools": TOOLS} | fields
    return client.chat.completions.create(**body)


def joined(chunks: Any) -> dict[str, Any]:
    """What a streaming client puts together, strict about every chunk."""
    message: dict[str, Any] = {"content": "", "tool_calls": [], "finish": []}
    for chunk in chunks:
        if not chunk.choices:
            message["usage"] = chunk.usage
            continue
        choice = chunk.choices[0]
        message["content"] += choice.delta.content or ""
        if choice.finish_reason:
            message["finish"].append(choice.finish_reason)
        for delta in choice.delta.tool_calls or []:
            calls = message["tool_calls"]
            if delta.index == len(calls):
                assert (delta.type, delta.function.arguments) == ("function", "")
                calls.append({"id": delta.id, "name": delta.function.name, "arguments": "", "pieces": 0})
            else:
                assert (delta.id, delta.type, delta.function.name) == (None, None, None)
            calls[delta.index]["arguments"] += delta.function.arguments
            calls[delta.index]["pieces"] += 1
    return message


SAID = [
    (PARIS, "", [("get_weather", {"city": 'Paris "</tool_call>" }', "days": 2})]),
    (f"Let me look.\n\n{PARIS}\n{call('now')}", "Let me look.", [
        ("get_weather", {"city": 'Paris "</tool_call>" }', "days": 2}), ("now", {}),
    ]),
    (call("now") + "\n" + call("now"), "", [("now", {}), ("now", {})]),
    ("Use <interface> or <tool here.", "Use <interface> or <tool here.", []),
]  # fmt: skip


@pytest.mark.parametrize(("said", "content", "calls"), SAID)
def test_calls_reach_the_client_live_and_whole(
    client: OpenAI, said: str, content: str, calls: list[tuple[str, Any]]
) -> None:
    whole = ask(client, said).choices[0]
    assert whole.finish_reason == ("tool_calls" if calls else "stop")
    assert (whole.message.content or "") == content
    made = whole.message.tool_calls or []
    assert [(c.function.name, json.loads(c.function.arguments)) for c in made] == calls
    assert whole.message.tool_calls is None or calls
    streamed = joined(ask(client, said, stream=True))
    assert (streamed["content"], streamed["finish"]) == (content, [whole.finish_reason])
    assert [(c["name"], json.loads(c["arguments"])) for c in streamed["tool_calls"]] == calls
    assert all(c["pieces"] > 2 for c in streamed["tool_calls"] if c["name"] == "get_weather")
    ids = [c.id for c in made] + [c["id"] for c in streamed["tool_calls"]]
    assert len(set(ids)) == len(ids)


def test_an_agent_loop_ends_with_an_answer(client: OpenAI) -> None:
    """What the server sent is sent back as it came."""
    messages = saying(PARIS, call("now"), "It is sunny.")
    ids = []
    for turn in itertools.count():
        answer = client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
        message = answer.choices[0].message
        messages.append(message.model_dump())
        if answer.choices[0].finish_reason == "stop":
            break
        assert turn < 2
        for made in message.tool_calls or []:
            ids.append(made.id)
            messages.append({"role": "tool", "tool_call_id": made.id, "content": "18 C"})
    assert (message.content, len(set(ids))) == ("It is sunny.", 2)


FORCED: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"tool_choice": "required"}, "I will not.", []),
    ({"tool_choice": NAMED}, PARIS, ["now"]),
    ({"tool_choice": NAMED, "parallel_tool_calls": False}, call("now") + "\n" + call("now"), ["now"]),
    ({"parallel_tool_calls": False}, call("now") + "\n" + call("now"), ["now"]),
    ({"tool_choice": "none"}, "Plain text.", []),
]


@pytest.mark.parametrize(("fields", "said", "names"), FORCED)
def test_the_choice_is_kept_whatever_the_model_says(
    client: OpenAI, fields: dict[str, Any], said: str, names: list[str]
) -> None:
    choice = ask(client, said, max_tokens=300, **fields).choices[0]
    made = [c.function.name for c in choice.message.tool_calls or []]
    if fields.get("tool_choice") == "required":
        assert choice.finish_reason == "length" or made
    else:
        assert made == names
        assert choice.finish_reason == ("tool_calls" if names else "stop")


def test_wrong_arguments_cannot_be_said(client: OpenAI) -> None:
    """The masks leave the script no choice."""
    said = call("get_weather", {"city": "Rome", "days": 77, "unit": "K", "colour": "red"})
    choice = ask(client, said, max_tokens=200).choices[0]
    for made in choice.message.tool_calls or []:
        arguments = json.loads(made.function.arguments)
        assert arguments["city"] == "Rome"
        assert set(arguments) <= {"city", "days", "unit"}
        assert 1 <= arguments.get("days", 1) <= 9


def test_tools_and_a_form_together(client: OpenAI) -> None:
    person = '{"name": "Ann", "age": 7}'
    answered = ask(client, person, response_format=JSON_PERSON).choices[0]
    assert (json.loads(answered.message.content), answered.finish_reason) == ({"name": "Ann", "age": 7}, "stop")
    called = ask(client, PARIS, response_format=JSON_PERSON).choices[0]
    assert (len(called.message.tool_calls), called.finish_reason) == (1, "tool_calls")


@pytest.mark.parametrize(("said", "content"), [("{}" + "\n" * 300, "{}"), ('{"a": 1}' + " " * 300, '{"a": 1}')])
def test_an_object_ends_with_its_brace(client: OpenAI, said: str, content: str) -> None:
    """However much the model would rather go on with white space, and to whatever limit."""
    choice = ask(client, said, tools=openai.omit, response_format={"type": "json_object"}, max_tokens=200).choices[0]
    assert (choice.message.content, choice.finish_reason) == (content, "stop")


def test_white_space_within_an_object_comes_to_an_end(client: OpenAI) -> None:
    said = '{"a":' + "\n" * 500 + "1}"
    choice = ask(client, said, tools=openai.omit, response_format={"type": "json_object"}, max_tokens=400).choices[0]
    assert "\n" * 50 not in choice.message.content


def test_a_call_that_is_cut_off_is_left_out_of_a_whole_answer(client: OpenAI) -> None:
    choice = ask(client, PARIS, max_tokens=12).choices[0]
    assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == ("length", "", None)


def test_stop_strings_are_not_looked_for_in_calls(client: OpenAI) -> None:
    assert len(ask(client, PARIS, stop=["Paris", "}"]).choices[0].message.tool_calls) == 1
    stopped = ask(client, f"Paris is nice. {PARIS}", stop=["nice"]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("Paris is ", "stop")


def test_several_choices_have_calls_of_their_own(client: OpenAI) -> None:
    choices = ask(client, PARIS, n=3).choices
    assert len({c.message.tool_calls[0].id for c in choices}) == 3


def test_logprobs_list_every_token_of_a_turn_with_calls(client: OpenAI) -> None:
    said = f"Sure. {PARIS}"
    answer = ask(client, said, logprobs=True)
    entries = answer.choices[0].logprobs.content
    assert b"".join(bytes(e.bytes) for e in entries).startswith(said.encode())
    streamed = [c for c in ask(client, said, logprobs=True, stream=True) if c.choices]
    listed = [e.token for c in streamed if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert listed == [e.token for e in entries]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": 5}}}}}]},
     "tools[0].function.parameters"),
    ({"response_format": {"type": "json_schema", "json_schema": {
        "name": "a", "schema": {"type": "integer", "minimum": 5, "maximum": 1}}}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {
        "name": "a", "schema": {"type": "string", "pattern": "^hello\\\\!$("}}}}, "response_format"),
    ({"guided_regex": "["}, "regex"),
    ({"guided_grammar": "start: nothing"}, "grammar"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "where"), REFUSED)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_kept_to_is_refused_before_headers(
    client: OpenAI, fields: dict[str, Any], where: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=saying("x"), stream=stream, extra_body=fields)
    assert where in caught.value.message


def test_arguments_of_earlier_calls_follow_their_schema(client: OpenAI) -> None:
    def history(arguments: str) -> list[Any]:
        made = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        return [
            {"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "a", "content": "sunny"}, *saying("Fine."),
        ]  # fmt: skip

    good = client.chat.completions.create(model="m", messages=history('{"city": "Rome"}'), tools=TOOLS)
    assert good.choices[0].message.content == "Fine."
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=history('{"city": 5}'), tools=TOOLS)
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"


def test_prompts_show_what_may_be_called(server: Server) -> None:
    def prompt(**fields: Any) -> str:
        body = {"messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS} | fields
        response = httpx.post(f"{server.url}/v1/apply-template", json=body, timeout=30)
        counted = httpx.post(f"{server.url}/v1/tokenize", json=body, timeout=30)
        assert counted.json()["tokens"] == response.json()["tokens"]
        return str(response.json()["prompt"])

    assert json.dumps(WEATHER, ensure_ascii=False) in prompt()
    assert "MUST call" in prompt(tool_choice="required")
    assert "MUST call a function now: now." in prompt(tool_choice=NAMED)
    assert "at most one" in prompt(parallel_tool_calls=False)
    hidden = prompt(tool_choice="none")
    assert "get_weather" not in hidden
    assert "Weather?" in hidden
    assert json.dumps(PERSON) in prompt(response_format=JSON_PERSON)
    assert prompt(response_format={"type": "text"}) == prompt()

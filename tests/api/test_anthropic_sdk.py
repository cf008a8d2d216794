"""The stock Anthropic client against the HTTP application; every event checked against its models and for its order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from ipc.messages import Failed, Started
from sparkinfer.config import ServerConfig
from sparkinfer.doctor.anthropic_stream import check_messages_stream
from sparkinfer.doctor.sse_events import parse_events
from sparkinfer.errors import RequestError, context_length_error
from sparkinfer.request import FinishReason
from tests.api.app_server import AppServer
from tests.api.scripts import CLOCK, WEATHER, Part, says

HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [
    {"name": name, "description": "d", "input_schema": {"type": "object", "properties": {}}}
    for name in ("get_weather", "now")
]
BODY = {"model": "claude-x", "max_tokens": 50, "messages": HELLO, "tools": TOOLS}
EVENT = TypeAdapter(RawMessageStreamEvent)
ANSWERS: list[tuple[Part, ...]] = [
    (("content", "Hello there"),),
    (("reasoning", "Hmm."), ("content", "\n\nHello")),
    (("reasoning", "Hmm."), ("content", "Looking."), WEATHER),
    (("reasoning", "a"), ("content", "b"), WEATHER, ("reasoning", "c"), ("content", "d"), CLOCK),
    (("content", "\n\n"), WEATHER, CLOCK),
    (WEATHER,),
    (("reasoning", "only"),),
    (("content", "é😀\u2028 \x00"),),
    (),
]


@pytest.fixture
def client(app: AppServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=app.url, api_key="none", max_retries=0, timeout=20, _strict_response_validation=True
    ) as made:
        yield made


def create(client: anthropic.Anthropic, **fields: Any) -> Message:
    return client.messages.create(**(BODY | fields))


@pytest.mark.parametrize("parts", ANSWERS)
@pytest.mark.parametrize("piece", [1, 3, 100])
def test_streams_keep_the_rules(app: AppServer, http: httpx.Client, parts: tuple[Part, ...], piece: int) -> None:
    app.pool.script = says(*parts, piece=piece)
    response = http.post("/v1/messages?beta=true", json=BODY | {"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = parse_events(response.text)
    assert check_messages_stream(events) == []
    for event in events:
        EVENT.validate_python(event.data, strict=True)


@pytest.mark.parametrize("parts", ANSWERS)
def test_a_stream_adds_up_to_the_whole(app: AppServer, client: anthropic.Anthropic, parts: tuple[Part, ...]) -> None:
    app.pool.script = says(*parts)
    whole = create(client)
    with client.messages.stream(**BODY) as stream:
        streamed = stream.get_final_message()
    drop = {"id": True, "content": {"__all__": {"parsed_output", "citations"}}}
    assert streamed.model_dump(exclude=drop) == whole.model_dump(exclude=drop)


def test_blocks_in_their_order(app: AppServer, client: anthropic.Anthropic) -> None:
    app.pool.script = says(("reasoning", "Hmm."), ("content", "\n\nLooking."), WEATHER, CLOCK)
    reply = create(client)
    assert [block.type for block in reply.content] == ["thinking", "text", "tool_use", "tool_use"]
    thinking, text, weather, clock = reply.content
    assert (thinking.thinking, text.text) == ("Hmm.", "\n\nLooking.")
    assert thinking.signature
    assert (weather.id, weather.name, weather.input) == ("toolu_abc123", "get_weather", {"city": "Paris"})
    assert (clock.id, clock.input) == ("toolu_def456", {})
    assert (reply.stop_reason, reply.stop_sequence, reply.model) == ("tool_use", None, "claude-x")


def test_our_answer_may_be_sent_back(app: AppServer, client: anthropic.Anthropic) -> None:
    app.pool.script = says(("reasoning", "Hmm."), ("content", "Looking."), WEATHER)
    reply = create(client)
    result = {"type": "tool_result", "tool_use_id": "toolu_abc123", "content": "18 C"}
    create(client, messages=[*HELLO, reply.to_param(), {"role": "user", "content": [result]}])
    *_, last = [app.pool.submitted.get() for _ in range(app.pool.submitted.qsize())]
    assert [message.role for message in last.prompt.messages] == ["user", "assistant", "tool"]
    assert last.prompt.messages[1].reasoning == "Hmm."


@pytest.mark.parametrize(
    ("script", "reason", "sequence"),
    [
        (says(("content", "a")), "end_turn", None),
        (says(("content", "a"), reason=FinishReason.LENGTH), "max_tokens", None),
        (says(("content", "a"), stop_string="END"), "stop_sequence", "END"),
        (says(WEATHER), "tool_use", None),
    ],
)
def test_stop_reasons(app: AppServer, client: anthropic.Anthropic, script: Any, reason: str, sequence: Any) -> None:
    app.pool.script = script
    whole = create(client)
    with client.messages.stream(**BODY) as stream:
        streamed = stream.get_final_message()
    for reply in (whole, streamed):
        assert (reply.stop_reason, reply.stop_sequence) == (reason, sequence)


def test_usage_is_the_prompts(app: AppServer, client: anthropic.Anthropic) -> None:
    app.pool.script = says(("content", "abcdef"), cached=4)
    with client.messages.stream(**BODY) as stream:
        starts = [event.message.usage for event in stream if event.type == "message_start"]
        usage = stream.get_final_message().usage
    assert [(start.input_tokens, start.output_tokens) for start in starts] == [(7, 0)]
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (3, 4, 2)


def test_hidden_thinking_has_a_block_without_text(app: AppServer, client: anthropic.Anthropic) -> None:
    app.pool.script = says(("reasoning", "secret"), ("content", "a"))
    thinking = {"type": "adaptive", "display": "omitted"}
    whole = create(client, thinking=thinking)
    with client.messages.stream(**BODY, thinking=thinking) as stream:
        streamed = stream.get_final_message()
    for reply in (whole, streamed):
        assert [(block.type, getattr(block, "thinking", None)) for block in reply.content] == [
            ("thinking", ""), ("text", None),
        ]  # fmt: skip
        assert reply.content[0].signature


def test_an_answer_cut_off_inside_a_call(app: AppServer, client: anthropic.Anthropic) -> None:
    app.pool.script = says(("call", "call_1", "now", '{"zone": "Eur'), reason=FinishReason.LENGTH)
    reply = create(client)
    assert (reply.stop_reason, reply.content) == ("max_tokens", [])


def test_count_tokens(client: anthropic.Anthropic) -> None:
    count = client.messages.count_tokens(model="x", messages=HELLO, tools=TOOLS, system="s")
    assert count.input_tokens == 5
    beta = client.beta.messages.count_tokens(
        model="x", messages=HELLO, thinking={"type": "adaptive"}, output_config={"effort": "low"},
        context_management={"edits": []}, betas=["context-management-2025-06-27"],
    )  # fmt: skip
    assert beta.input_tokens == 5


def test_models(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list()
    assert (model.id, model.display_name, model.lifecycle, model.max_input_tokens) == ("tiny", "tiny", "active", 512)
    assert client.models.retrieve("tiny") == model
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("other")


def test_beta_route(app: AppServer, client: anthropic.Anthropic) -> None:
    app.pool.script = says(("content", "Hi"))
    reply = client.beta.messages.create(**BODY, betas=["interleaved-thinking-2025-05-14"], metadata={"user_id": "u"})
    assert reply.content[0].text == "Hi"


def test_skipped_tools_are_named_in_a_header(app: AppServer, http: httpx.Client) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    for stream in (False, True):
        response = http.post("/v1/messages", json=BODY | {"tools": [*TOOLS, search], "stream": stream})
        assert response.headers["x-sparkinfer-skipped-tools"] == "web_search_20250305"
        assert response.headers["request-id"] == response.headers["x-request-id"]


ERRORS = [
    (400, anthropic.BadRequestError, "invalid_request_error"),
    (429, anthropic.RateLimitError, "rate_limit_error"),
    (500, anthropic.InternalServerError, "api_error"),
    (503, anthropic.InternalServerError, "overloaded_error"),
    (504, anthropic.InternalServerError, "timeout_error"),
]


@pytest.mark.parametrize(("status", "error", "kind"), ERRORS)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_before_headers(
    app: AppServer, client: anthropic.Anthropic, status: int, error: type[Exception], kind: str, stream: bool
) -> None:
    app.pool.script = lambda r: [[Failed(r.request_id, status, "because")]]
    with pytest.raises(error, match="because") as raised:
        create(client, stream=stream)
    assert (raised.value.status_code, raised.value.body["error"]["type"]) == (status, kind)


def test_the_doors_own_errors_have_the_apis_shape(app: AppServer, http: httpx.Client) -> None:
    with AppServer(ServerConfig(api_keys=("key",), max_body_mib=1)) as locked:
        big = httpx.post(f"{locked.url}/v1/messages", content=b"x" * (2 << 20), headers={"x-api-key": "key"})
        replies = [httpx.post(f"{locked.url}/v1/messages", json=BODY), big]
    replies += [http.get("/v1/messages"), http.post("/v1/messages/batches"), http.post("/v1/messages", content=b"{")]
    assert [reply.status_code for reply in replies] == [401, 413, 405, 404, 400]
    kinds = [reply.json()["error"]["type"] for reply in replies]
    assert kinds == [
        "authentication_error",
        "request_too_large",
        "invalid_request_error",
        "not_found_error",
        "invalid_request_error",
    ]
    assert all(reply.json()["type"] == "error" for reply in replies)


def test_overflow_is_told_in_the_words_agents_know(app: AppServer, client: anthropic.Anthropic) -> None:
    app.pool.refusal = context_length_error(512, 700, "messages")
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 700 tokens > 512 maximum"):
        create(client)


def test_an_error_inside_a_stream(app: AppServer, http: httpx.Client, client: anthropic.Anthropic) -> None:
    app.pool.script = lambda r: [[Started(r.request_id, 3)], ...]  # and then nothing
    with http.stream("POST", "/v1/messages", json=BODY | {"stream": True}) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: message_start"
        app.fail_all(RequestError(503, "gone"))
        rest = "\n".join(lines)
    (error,) = parse_events(rest.split("\n\n", 1)[1])
    assert (error.name, error.data["error"]) == ("error", {"type": "overloaded_error", "message": "gone"})


def test_pings_keep_a_silent_stream_alive(app: AppServer, client: anthropic.Anthropic) -> None:
    app.pool.script = lambda r: [[Started(r.request_id, 3)], ...]
    seen = []
    with client.messages.create(**BODY, stream=True) as stream:
        for event in stream.response.iter_lines():
            if event == "event: message_start":
                app.call(app.generations.tick)
                app.call(app.generations.tick)
            seen.append(event)
            if event == 'data: {"type":"ping"}':
                break
    assert "event: ping" in seen


def test_a_client_that_leaves_is_noticed(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = lambda r: [[Started(r.request_id, 3)], ...]
    with http.stream("POST", "/v1/messages", json=BODY | {"stream": True}) as response:
        next(response.iter_lines())
    deadline = time.monotonic() + 10
    assert app.pool.aborts.get(timeout=deadline - time.monotonic()) is not None

"""The stock OpenAI client's Responses API against the HTTP application; every event checked for model and order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from ipc.messages import Delta, Failed, Started, TokenLogprob
from sparkinfer.config import ServerConfig
from sparkinfer.doctor.responses_stream import check_responses_stream
from sparkinfer.doctor.sse_events import parse_events
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason, Request
from tests.api.app_server import AppServer, finished
from tests.api.scripts import CLOCK, WEATHER, Part, says

TOOLS = [
    {"type": "function", "name": name, "description": "d", "strict": False,
     "parameters": {"type": "object", "properties": {}}}
    for name in ("get_weather", "now")
]  # fmt: skip
PATCH = {"type": "custom", "name": "apply_patch", "description": "d"}
MCP = {"type": "namespace", "name": "mcp__files", "description": "d",
       "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}]}  # fmt: skip
BODY: dict[str, Any] = {"model": "m", "input": "Hello", "tools": [*TOOLS, PATCH, MCP]}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PATCHED = ("call", "call_p", "apply_patch", '{"input": "*** Begin\\nä"}')
READ = ("call", "call_r", "mcp__files__read", '{"path": "x"}')
ANSWERS: list[tuple[Part, ...]] = [
    (("content", "Hello there"),),
    (("reasoning", "Hmm."), ("content", "\n\nHello")),
    (("reasoning", "Hmm."), ("content", "Looking."), WEATHER),
    (("reasoning", "a"), ("content", "b"), WEATHER, ("reasoning", "c"), ("content", "d"), CLOCK),
    (("content", "\n\n"), WEATHER, PATCHED, READ),
    (("reasoning", "only"),),
    (),
]


@pytest.fixture
def client(app: AppServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=20, _strict_response_validation=True
    ) as made:
        yield made


def create(client: openai.OpenAI, **fields: Any) -> Response:
    return client.responses.create(**(BODY | fields))


@pytest.mark.parametrize("parts", ANSWERS)
@pytest.mark.parametrize("reason", [None, FinishReason.LENGTH])
@pytest.mark.parametrize("piece", [1, 100])
def test_streams_keep_the_rules(
    app: AppServer, http: httpx.Client, parts: tuple[Part, ...], reason: FinishReason | None, piece: int
) -> None:
    app.pool.script = says(*parts, reason=reason, piece=piece)
    response = http.post("/v1/responses", json=BODY | {"stream": True})
    events = parse_events(response.text)
    assert check_responses_stream(events) == []
    for event in events:
        assert event.name == event.data["type"]
        EVENT.validate_python(event.data, strict=True)
    assert "[DONE]" not in response.text


def plain(response: Response) -> Any:
    """Without ids and times."""
    document = response.model_dump(mode="json", exclude={"id", "created_at"})
    for item in document["output"]:
        item.pop("id")
        for part in item.get("content") or []:
            part.pop("parsed", None)
        item.pop("parsed_arguments", None)
    return document


@pytest.mark.parametrize("parts", ANSWERS)
@pytest.mark.parametrize("reason", [None, FinishReason.LENGTH])
def test_a_stream_adds_up_to_the_whole(
    app: AppServer, client: openai.OpenAI, parts: tuple[Part, ...], reason: FinishReason | None
) -> None:
    app.pool.script = says(*parts, reason=reason)
    whole = create(client)
    with client.responses.stream(**BODY) as stream:
        streamed = stream.get_final_response()
    assert plain(streamed) == plain(whole)


def test_items_in_their_order(app: AppServer, client: openai.OpenAI) -> None:
    app.pool.script = says(("reasoning", "Hmm."), ("content", "Looking."), WEATHER, PATCHED, READ)
    reply = create(client, metadata={"a": "b"}, instructions="Be brief.")
    reasoning, message, weather, patch, read = reply.output
    assert (reasoning.content[0].text, reasoning.summary, message.content[0].text) == ("Hmm.", [], "Looking.")
    assert (weather.call_id, weather.name, weather.arguments) == ("call_abc123", "get_weather", '{"city": "Paris"}')
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "apply_patch", "*** Begin\nä")
    assert (read.type, read.name, read.namespace) == ("function_call", "read", "mcp__files")
    assert (reply.status, reply.output_text, reply.metadata) == ("completed", "Looking.", {"a": "b"})
    assert (reply.model, reply.instructions, len(reply.tools)) == ("m", "Be brief.", 4)


def test_our_answer_may_be_sent_back(app: AppServer, client: openai.OpenAI) -> None:
    app.pool.script = says(("reasoning", "Hmm."), ("content", "Looking."), WEATHER, PATCHED, READ)
    reply = create(client)
    results: list[Any] = [
        {"type": "function_call_output", "call_id": "call_abc123", "output": "18 C"},
        {"type": "custom_tool_call_output", "call_id": "call_p", "output": "ok"},
        {"type": "function_call_output", "call_id": "call_r", "output": [{"type": "input_text", "text": "x"}]},
    ]
    sent = [item.model_dump(exclude_unset=True) for item in reply.output]
    create(client, input=[{"role": "user", "content": "Hello"}, *sent, *results])
    last = submitted(app)[-1]
    assert [message.role for message in last.prompt.messages] == ["user", "assistant", "tool", "tool", "tool"]
    assert [call.name for call in last.prompt.messages[1].tool_calls] == [
        "get_weather", "apply_patch", "mcp__files__read",
    ]  # fmt: skip
    assert last.prompt.messages[1].reasoning == "Hmm."


def submitted(app: AppServer) -> list[Any]:
    return [app.pool.submitted.get() for _ in range(app.pool.submitted.qsize())]


def test_reasoning_may_travel_with_the_client(app: AppServer, client: openai.OpenAI) -> None:
    app.pool.script = says(("reasoning", "Hmm."), ("content", "a"))
    item = create(client, include=["reasoning.encrypted_content"]).output[0]
    assert create(client).output[0].encrypted_content is None
    kept = {"type": "reasoning", "id": item.id, "summary": [], "encrypted_content": item.encrypted_content}
    create(client, input=[kept, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}])
    assert submitted(app)[-1].prompt.messages[0].reasoning == "Hmm."


def test_an_answer_without_room_ends_complete_but_says_so(app: AppServer, client: openai.OpenAI) -> None:
    app.pool.script = says(("content", "abc"), reason=FinishReason.LENGTH)
    with client.responses.stream(**BODY) as stream:
        *_, last = stream
    assert last.type == "response.completed"
    assert (last.response.status, last.response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert last.response.output[0].status == "incomplete"


def test_usage(app: AppServer, client: openai.OpenAI) -> None:
    app.pool.script = says(("content", "abcdef"), cached=4)
    usage = create(client).usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (7, 2, 9)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (4, 1)


def test_logprobs(app: AppServer, client: openai.OpenAI) -> None:
    def script(request: Request) -> Iterator[list[Any]]:
        entry = TokenLogprob(5, b"a", -0.5, [(5, b"a", -0.5), (6, b"b", -2.0)])
        yield [Started(request.request_id, 3)]
        yield [Delta(request.request_id, 0, "", "think", 1, [entry])]
        yield [Delta(request.request_id, 0, "", "", 1, [entry]), Delta(request.request_id, 0, "a", "", 1, [entry])]
        yield [Delta(request.request_id, 0, "a", "", 1, [entry]), Delta(request.request_id, 0, "", "", 1, [entry])]
        yield [finished(request, num_tokens=4)]

    app.pool.script = script
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = create(client, **include).output[1].content[0].logprobs
    assert [entry.logprob for entry in whole] == [-0.5] * 4
    assert whole[0].top_logprobs[1].token == "b"
    events = list(create(client, **include, stream=True))
    deltas = [len(event.logprobs) for event in events if event.type == "response.output_text.delta"]
    assert deltas == [2, 1]
    assert plain(events[-1].response)["output"][1]["content"][0]["logprobs"] == [e.model_dump() for e in whole]


def test_skipped_tools_are_named_in_a_header(http: httpx.Client) -> None:
    hosted = [{"type": "web_search"}, {"type": "image_generation"}]
    response = http.post("/v1/responses", json=BODY | {"tools": [*TOOLS, *hosted]})
    assert response.headers["x-sparkinfer-skipped-tools"] == "image_generation, web_search"


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, openai.BadRequestError), (429, openai.RateLimitError), (500, openai.InternalServerError),
     (503, openai.InternalServerError)],
)  # fmt: skip
def test_errors_before_headers(app: AppServer, client: openai.OpenAI, status: int, error: type[Exception]) -> None:
    app.pool.script = lambda r: [[Failed(r.request_id, status, "because", "input", "context_length_exceeded")]]
    for stream in (False, True):
        with pytest.raises(error, match="because") as raised:
            create(client, stream=stream)
        assert raised.value.code == "context_length_exceeded"


@pytest.mark.parametrize("code", ["context_length_exceeded", "rate_limit_exceeded", None])
def test_a_failure_inside_a_stream_is_told(app: AppServer, http: httpx.Client, code: str | None) -> None:
    app.pool.script = lambda r: [[Started(r.request_id, 3), Delta(r.request_id, 0, "a", "", 1)], ...]
    with http.stream("POST", "/v1/responses", json=BODY | {"stream": True}) as response:
        text = ""
        for chunk in response.iter_text():
            text += chunk
            if "output_text.delta" in text and "gone" not in text:
                app.fail_all(RequestError(503, "gone", code=code))
    events = parse_events(text)
    assert check_responses_stream(events) == []
    assert [event.name for event in events[-2:]] == ["error", "response.failed"]
    failed = events[-1].data["response"]
    told = code if code == "context_length_exceeded" else "server_error"  # of a few that OpenAI's models know
    assert (failed["status"], failed["error"]) == ("failed", {"code": told, "message": "gone"})
    (item,) = failed["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "a")


def test_silence_is_filled_with_events(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = lambda r: [[Started(r.request_id, 3)], ...]
    with http.stream("POST", "/v1/responses", json=BODY | {"stream": True}) as response:
        text = ""
        for chunk in response.iter_text():
            text += chunk
            if text.count("event: response.in_progress") == 2:
                break
            app.call(app.generations.tick)
            app.call(app.generations.tick)
    numbers = [event.data["sequence_number"] for event in parse_events(text)]
    assert numbers == [0, 1, 2]


def test_nothing_is_stored_unless_asked(app: AppServer, client: openai.OpenAI) -> None:
    reply = create(client)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.retrieve(reply.id)
    with pytest.raises(openai.BadRequestError, match="not found") as raised:
        create(client, previous_response_id=reply.id)
    assert (raised.value.code, raised.value.param) == ("previous_response_not_found", "previous_response_id")


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_by_its_ids(app: AppServer, client: openai.OpenAI, stream: bool) -> None:
    app.pool.script = says(("reasoning", "r"), ("content", "one"))
    if stream:
        first = list(create(client, store=True, stream=True))[-1].response
    else:
        first = create(client, store=True)
    assert plain(client.responses.retrieve(first.id)) == plain(first)
    second = create(client, store=True, previous_response_id=first.id, input="again")
    third = create(client, previous_response_id=second.id, input=[{"role": "user", "content": "and again"}])
    assert third.previous_response_id == second.id
    messages = submitted(app)[-1].prompt.messages
    assert [message.content for message in messages] == ["Hello", "one", "again", "one", "and again"]
    items = client.responses.input_items.list(second.id).data
    assert [item.type for item in items] == ["message", "message", "reasoning", "message"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(first.id)
    assert client.responses.retrieve(second.id).id == second.id


def test_input_tokens(client: openai.OpenAI) -> None:
    assert client.responses.input_tokens.count(model="m", input="Hello", tools=TOOLS).input_tokens == 5


def test_keys_do_not_share_responses() -> None:
    with AppServer(ServerConfig(api_keys=("a", "b"))) as locked:
        def ask(key: str, method: str, path: str, **options: Any) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.request(method, f"{locked.url}/v1/responses{path}", headers=headers, **options)

        stored = ask("a", "POST", "", json={"input": "x", "store": True}).json()["id"]
        assert [ask(key, "GET", f"/{stored}").status_code for key in ("a", "b", "c")] == [200, 404, 401]
        assert ask("b", "DELETE", f"/{stored}").status_code == 404
        assert ask("b", "POST", "", json={"input": "x", "previous_response_id": stored}).status_code == 400


def test_unknown_ids_and_methods(http: httpx.Client) -> None:
    assert http.get("/v1/responses/resp_x").status_code == 404
    assert http.get("/v1/responses/resp_x/input_items").status_code == 404
    assert http.post("/v1/responses/resp_x/cancel").status_code == 404
    assert http.get("/v1/responses").status_code == 405
    assert json.loads(http.get("/v1/responses/resp_x").text)["error"]["code"] == "response_not_found"

"""The stock OpenAI client, synchronous and asynchronous, with its response models checked strictly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from ipc.messages import Delta, Failed, Started, TokenLogprob
from sparkinfer.request import Request
from tests.api.app_server import AppServer, finished

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def client(app: AppServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=20, _strict_response_validation=True
    ) as made:
        yield made


def with_logprobs(request: Request) -> Iterator[list[object]]:
    entry = TokenLogprob(5, b"\xc3", float("-inf"), [(5, b"\xc3", -0.5), (6, b"b", float("nan"))])
    yield [Started(request.request_id, 3)]
    yield [Delta(request.request_id, 0, "", "think", 1)]
    yield [Delta(request.request_id, 0, "", "", 1, [entry])]
    yield [Delta(request.request_id, 0, "é", "", 1, [entry])]
    yield [finished(request, num_tokens=3)]


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="tiny", messages=HELLO, n=2)
    assert [choice.message.content for choice in reply.choices] == ["Hello", "Hello"]
    assert (reply.object, reply.model, reply.usage.total_tokens) == ("chat.completion", "tiny", 15)


def test_chat_stream(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="tiny", messages=HELLO, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == 5


def test_chat_stream_helper_assembles_the_whole(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tiny", messages=HELLO) as stream:
        assert stream.get_final_completion().choices[0].message.content == "Hello"


def test_logprobs_and_reasoning(app: AppServer, client: openai.OpenAI) -> None:
    app.pool.script = with_logprobs
    create = client.chat.completions.create
    choice = create(model="tiny", messages=HELLO, logprobs=True, top_logprobs=2).choices[0]
    assert choice.message.reasoning == choice.message.reasoning_content == "think"
    assert [entry.logprob for entry in choice.logprobs.content] == [-9999.0, -9999.0]
    assert choice.logprobs.content[0].bytes == [0xC3]
    assert choice.logprobs.content[0].top_logprobs[1].logprob == -9999.0
    chunks = list(create(model="tiny", messages=HELLO, logprobs=True, top_logprobs=2, stream=True))
    streamed = [e for c in chunks if c.choices and c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert streamed == choice.logprobs.content


def test_completion_and_its_stream(app: AppServer, client: openai.OpenAI) -> None:
    reply = client.completions.create(model="tiny", prompt=["Hi", "yo"], echo=True)
    assert [choice.text for choice in reply.choices] == ["HiHi", "yoyo"]
    client._strict_response_validation = False  # its model forbids the finish_reason null of OpenAI's own chunks
    chunks = list(client.completions.create(model="tiny", prompt="Hi", stream=True))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == "Hi"
    app.pool.script = with_logprobs
    choice = client.completions.create(model="tiny", prompt=[1, 2], logprobs=2).choices[0]
    assert choice.logprobs.text_offset == [0, 0]
    assert choice.logprobs.token_logprobs == [-9999.0, -9999.0]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "sparkinfer"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, openai.BadRequestError), (404, openai.NotFoundError), (429, openai.RateLimitError),
     (500, openai.InternalServerError), (503, openai.InternalServerError)],
)  # fmt: skip
def test_errors_are_the_sdks_own(app: AppServer, client: openai.OpenAI, status: int, error: type[Exception]) -> None:
    app.pool.script = lambda r: [[Failed(r.request_id, status, "because", "messages", "context_length_exceeded")]]
    for stream in (False, True):
        with pytest.raises(error, match="because") as raised:
            client.chat.completions.create(model="tiny", messages=HELLO, stream=stream)
        assert raised.value.code == "context_length_exceeded"
        assert raised.value.param == "messages"


def test_error_inside_a_stream_is_raised(app: AppServer, client: openai.OpenAI) -> None:
    app.pool.script = lambda r: [[Started(r.request_id, 1)], [Failed(r.request_id, 503, "gone", None, "worker_lost")]]
    with pytest.raises(openai.APIError, match="gone"):
        list(client.chat.completions.create(model="tiny", messages=HELLO, stream=True))


def test_many_async_requests_at_once(app: AppServer) -> None:
    async def ask(client: openai.AsyncOpenAI, i: int) -> str:
        messages = [{"role": "user", "content": f"number {i}"}]
        if i % 2:
            reply = await client.chat.completions.create(model="tiny", messages=messages)
            return reply.choices[0].message.content or ""
        stream = await client.chat.completions.create(model="tiny", messages=messages, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, i) for i in range(100)))

    assert asyncio.run(run()) == [f"number {i}" for i in range(100)]

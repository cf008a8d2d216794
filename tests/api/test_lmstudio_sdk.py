"""LM Studio's own SDK over its WebSockets: models, answers, tools, cancellation, refusals."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import lmstudio
import pytest

from ipc.messages import Delta, Failed, Started
from sparkinfer.request import ChatPrompt, FinishReason, JsonSchemaFormat, Message, Request, TextPrompt
from tests.api.app_server import AppServer
from tests.api.scripts import says

CALL = ("call", "call_1", "get_weather", '{"city": "Paris"}')


@pytest.fixture
def client(app: AppServer) -> Iterator[lmstudio.Client]:
    with lmstudio.Client(f"127.0.0.1:{app.port}") as made:
        yield made


@pytest.fixture
def llm(app: AppServer, client: lmstudio.Client) -> lmstudio.LLM:
    while not app.pool.submitted.empty():
        app.pool.submitted.get_nowait()
    return client.llm.model()


def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


def test_models(client: lmstudio.Client) -> None:
    (downloaded,) = client.list_downloaded_models()
    (loaded,) = client.list_loaded_models()
    assert (downloaded.model_key, loaded.identifier) == ("tiny", "tiny")
    assert client.embedding.list_loaded() == []
    model = client.llm.model("tiny")
    assert model.get_context_length() == 512
    assert model.get_load_config().context_length == 512
    assert model.get_info().architecture == "llama"
    assert lmstudio.Client.is_valid_api_host(client.api_host)


def test_prompts_are_looked_at(llm: lmstudio.LLM) -> None:
    assert (llm.tokenize("abc"), llm.count_tokens("abcd"), llm.count_tokens("")) == ([0, 1, 2], 4, 0)
    assert llm.apply_prompt_template("Hello") == "Hello"


def test_an_answer(app: AppServer, llm: lmstudio.LLM) -> None:
    chat = lmstudio.Chat("Be brief.")
    chat.add_user_message("Hello")
    settings = {
        "temperature": 0.5, "maxTokens": 9, "topKSampling": 3, "topPSampling": 0.9, "minPSampling": 0.1,
        "repeatPenalty": 1.1, "stopStrings": ["x"],
    }  # fmt: skip
    result = llm.respond(chat, config=settings)
    assert (result.content, result.stats.stop_reason, result.stats.prompt_tokens_count) == ("Hello", "eosFound", 5)
    assert (result.prediction_config.max_tokens, result.model_info.model_key) == (9, "tiny")
    request = app.pool.submitted.get()
    assert [message.role for message in request.prompt.messages] == ["system", "user"]
    sampling = request.sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.top_k, sampling.top_p) == (0.5, 9, 3, 0.9)
    assert (sampling.min_p, sampling.repetition_penalty, request.stop) == (0.1, 1.1, ("x",))


def test_a_stream(llm: lmstudio.LLM) -> None:
    progress: list[float] = []
    stream = llm.respond_stream("Hello", on_prompt_processing_progress=progress.append)
    assert [fragment.content for fragment in stream] == list("Hello")
    assert progress == [0, 1]


def test_a_text_is_continued(app: AppServer, llm: lmstudio.LLM) -> None:
    assert llm.complete("Once upon").content == "Once upon"
    assert app.pool.submitted.get().prompt == TextPrompt(text="Once upon")


def test_reasoning_has_its_own_fragments_and_comes_back(app: AppServer, llm: lmstudio.LLM) -> None:
    app.pool.script = says(("reasoning", "Hmm."), ("content", "Yes."), piece=9)
    stream = llm.respond_stream("Really?")
    assert [(fragment.content, fragment.reasoning_type) for fragment in stream] == [
        ("<think>", "reasoningStartTag"), ("Hmm.", "reasoning"), ("</think>", "reasoningEndTag"), ("Yes.", "none"),
    ]  # fmt: skip
    chat = lmstudio.Chat.from_history("Really?")
    chat.add_assistant_response(stream.result())
    chat.add_user_message("And now?")
    llm.respond(chat, config={"reasoningParsing": {"enabled": False, "startString": "", "endString": ""}})
    app.pool.submitted.get()
    answer = app.pool.submitted.get().prompt.messages[1]
    assert answer == Message(role="assistant", content="Yes.", reasoning="Hmm.")


def test_forms(app: AppServer, llm: lmstudio.LLM) -> None:
    app.pool.script = says(("content", '{"a": 1}'))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert llm.respond("Now.", response_format=schema).parsed == {"a": 1}
    assert isinstance(app.pool.submitted.get().output_format, JsonSchemaFormat)


def test_tools_are_called_until_the_model_is_done(app: AppServer, llm: lmstudio.LLM) -> None:
    def script(request: Request) -> Iterator[list[object]]:
        assert isinstance(request.prompt, ChatPrompt)
        has_result = any(message.role == "tool" for message in request.prompt.messages)
        return iter(says(("content", "Done."))(request) if has_result else says(("content", "Wait."), CALL)(request))

    app.pool.script = script  # type: ignore[assignment]
    said: list[object] = []
    assert llm.act("Weather?", [get_weather], on_message=said.append).rounds == 2
    assert "Done." in str(said[-1])
    first, second = app.pool.submitted.get(), app.pool.submitted.get()
    assert [tool.name for tool in first.prompt.tools] == ["get_weather"]
    assert [(message.role, message.content) for message in second.prompt.messages] == [
        ("user", "Weather?"), ("assistant", "Wait."), ("tool", '"sunny in Paris"'),
    ]  # fmt: skip
    assert second.prompt.messages[1].tool_calls[0].id == second.prompt.messages[2].tool_call_id == "call_1"


def test_a_call_that_a_limit_cut_is_none(app: AppServer, llm: lmstudio.LLM) -> None:
    app.pool.script = says(("call", "c", "get_weather", '{"ci'), reason=FinishReason.LENGTH)
    with pytest.raises(lmstudio.LMStudioPredictionError, match="parse tool call"):
        llm.act("Weather?", [get_weather])


def test_stop_reasons(app: AppServer, llm: lmstudio.LLM) -> None:
    app.pool.script = says(("content", "a"), reason=FinishReason.LENGTH)
    assert llm.respond("x").stats.stop_reason == "maxPredictedTokensReached"
    app.pool.script = says(("content", "a"), stop_string="b")
    assert llm.respond("x").stats.stop_reason == "stopStringFound"


@pytest.mark.parametrize("has_started", [True, False])
def test_cancelling(app: AppServer, llm: lmstudio.LLM, has_started: bool) -> None:
    start = [Started(0, 1)] if has_started else []
    app.pool.script = lambda r: [[type(e)(r.request_id, 1) for e in start] + [Delta(r.request_id, 0, "x", "", 1)], ...]
    stream = llm.respond_stream("Hello")
    stream.start()
    request = app.pool.submitted.get(timeout=20)
    if has_started:
        next(iter(stream._channel.rx_stream()))
    stream.cancel()
    assert stream.wait_for_result().stats.stop_reason == "userStopped"
    assert app.pool.aborts.get(timeout=20) == request.request_id


def test_refusals(app: AppServer, client: lmstudio.Client, llm: lmstudio.LLM) -> None:
    for name in ("other", "tinyish"):
        with pytest.raises(lmstudio.LMStudioModelNotFoundError, match=name):
            client.llm.model(name)
    with pytest.raises(lmstudio.LMStudioServerError, match="operator"):
        client.llm.load_new_instance("tiny")
    with pytest.raises(lmstudio.LMStudioServerError, match="operator"):
        llm.unload()
    with pytest.raises(lmstudio.LMStudioServerError, match="operator"):
        client.embedding.model("tiny")
    with pytest.raises(lmstudio.LMStudioServerError, match="cannot see"):
        client.prepare_image(b"\x89PNG", "a.png")
    with pytest.raises(lmstudio.LMStudioServerError, match="operator"):
        client.repository.search_models("x")
    with pytest.raises(lmstudio.LMStudioPredictionError, match="temperature"):
        llm.respond("x", config={"temperature": 9})
    app.pool.script = lambda r: [[Failed(r.request_id, 429, "busy", "", "queue_full")]]
    with pytest.raises(lmstudio.LMStudioPredictionError, match="busy"):
        llm.respond("x")


def test_a_failure_in_the_middle(app: AppServer, llm: lmstudio.LLM) -> None:
    app.pool.script = lambda r: [
        [Started(r.request_id, 1)], [Delta(r.request_id, 0, "x", "", 1)], [Failed(r.request_id, 503, "gone")],
    ]  # fmt: skip
    with pytest.raises(lmstudio.LMStudioPredictionError, match="gone"):
        llm.respond("x")


def test_many_at_once(app: AppServer) -> None:
    async def ask() -> list[str]:
        async with lmstudio.AsyncClient(f"127.0.0.1:{app.port}") as client:
            model = await client.llm.model()
            results = await asyncio.gather(*(model.respond(f"number {i}") for i in range(50)))
            return [result.content for result in results]

    assert asyncio.run(ask()) == [f"number {i}" for i in range(50)]


def test_silence_is_filled(app: AppServer, llm: lmstudio.LLM) -> None:
    app.pool.script = lambda r: [[Started(r.request_id, 3)], ...]
    stream = llm.respond_stream("Hello")
    stream.start()
    received = stream._channel.rx_stream()
    assert next(received)["progress"] == 0
    app.call(app.generations.tick)
    app.call(app.generations.tick)
    assert [message["type"] for message in itertools.islice(received, 1)] == ["promptProcessingProgress"]
    stream.cancel()
    stream.wait_for_result()

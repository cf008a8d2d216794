"""LM Studio's SDK through all processes: a call under its grammar, shutdown with open sockets, a worker that dies."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import lmstudio
import pytest

from tests.system.harness import SCRIPTED, Server, is_alive

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ASK = f"<<say>>Let me see.\n{CALL}<</say>><<say>>It is 18 C.<</say>>"


def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"18 C in {city}"


def host(server: Server) -> str:
    return server.url.removeprefix("http://")


def test_a_tool(scripted_server: Server) -> None:
    said: list[Any] = []
    with lmstudio.Client(host(scripted_server)) as client:
        model = client.llm.model()
        assert model.act(ASK, [get_weather], on_message=said.append).rounds == 2
        assert "It is 18 C." in str(said[-1])
        assert "18 C in Paris" in str(said[1])
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        assert model.respond('<<say>>{"a": 7}<</say>>', response_format=schema).parsed == {"a": 7}
        assert model.count_tokens("Hello there") == len(model.tokenize("Hello there")) > 1


def test_a_busy_server_finishes_predictions_and_closes_sockets(embedded_model: Path) -> None:
    with Server(embedded_model, *SCRIPTED, "engine.scripted_step_us=10000") as server:
        processes = server.workers()
        with lmstudio.Client(host(server)) as client:
            client.list_downloaded_models()  # another socket, idle
            stream = client.llm.model().complete_stream("word " * 100, config={"maxTokens": 100})
            pieces = []
            for fragment in stream:
                if not pieces:
                    server.signal(signal.SIGTERM)
                pieces.append(fragment.content)
            assert stream.result().stats.stop_reason == "maxPredictedTokensReached"
            assert len(pieces) > 50
            assert server.wait() == 0
        assert not any(map(is_alive, processes))
        assert "Traceback" not in server.log


def test_a_dead_engine_ends_a_prediction_with_an_error(embedded_model: Path) -> None:
    def until_it_ends(stream: Any) -> None:
        for i, _ in enumerate(stream):
            if i == 3:
                engine.kill()

    with Server(embedded_model, *SCRIPTED, "engine.scripted_step_us=10000") as server:
        engine = server.worker("gpu-0")
        with lmstudio.Client(host(server)) as client:
            stream = client.llm.model().respond_stream("word " * 900, config={"maxTokens": 900})
            with pytest.raises(lmstudio.LMStudioPredictionError):
                until_it_ends(stream)
            server.wait_ready_again()
            assert client.llm.model().respond("Hello", config={"maxTokens": 3}).content

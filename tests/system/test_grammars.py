"""Grammars in the whole service: schemas that take too long, helpers that die, more answers than rows, a real model."""

from __future__ import annotations

import contextlib
import json
import re
import select
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from sparkinfer.grammar.checker import first_violation
from tests.system.harness import SCRIPTED, Server

SCHEMA = {
    "type": "object",
    "properties": {
        "identification_number": {"type": "integer", "minimum": 0, "maximum": 99},
        "colour": {"enum": ["red", "green"]},
        "note": {"type": "string", "maxLength": 12},
    },
    "required": ["identification_number", "colour", "note"],
    "additionalProperties": False,
}
AS_JSON = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
WORD = {"type": "regex", "regex": "[ab]{4}"}


def ask(server: Server, response_format: Any = None, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "A red thing, as JSON."}], "max_tokens": 80}
    if response_format is not None:
        body["response_format"] = response_format
    return httpx.post(f"{server.url}/v1/chat/completions", json=body | fields, timeout=60)


def contents(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [choice["message"]["content"] for choice in response.json()["choices"]]


def builders(server: Server) -> list[psutil.Process]:
    return [p for p in server.worker("text-0").children() if "workers.grammar_builder" in p.cmdline()]


@pytest.fixture(scope="module")
def held(embedded_model: Path) -> Any:
    overrides = (*SCRIPTED, "model.max_model_len=1024", "scheduler.max_num_seqs=4", "grammar.compile_timeout_s=1.0",
                 "grammar.max_schema_kib=2048")  # fmt: skip
    with Server(embedded_model, *overrides) as running:
        yield running


def test_every_choice_obeys(server: Server) -> None:
    """The real model, at temperature 1; forced tokens are on."""
    for seed in range(4):
        for content in contents(ask(server, AS_JSON, n=2, temperature=1, seed=seed)):
            assert first_violation(SCHEMA, json.loads(content)) is None, content
    metrics = httpx.get(f"{server.url}/metrics").text
    forced = re.search(r"^sparkinfer_grammar_forced_tokens_total (\d+)$", metrics, re.MULTILINE)
    assert forced is not None
    assert int(forced[1]) > 0
    assert "sparkinfer_mask_seconds_count" in metrics


def test_more_answers_than_rows(held: Server) -> None:
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda number: ask(held, WORD, n=1 + number % 3), range(12)))
    texts = [text for answer in answers for text in contents(answer)]
    assert len(texts) == 24
    assert all(re.fullmatch("[ab]{4}", text) for text in texts)


def test_a_grammar_ends_an_answer_whatever_the_client_says(held: Server) -> None:
    (text,) = contents(ask(held, WORD, ignore_eos=True))
    assert re.fullmatch("[ab]{4}", text)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for level in range(16):
        copies = range(3 if level >= 16 - depth else 1)
        schema = {"oneOf": [{"type": "object", "properties": {f"p{level}{copy}": schema}} for copy in copies]}
    return schema


BOMBS = [
    {"type": "regex", "regex": "a|b" * 300_000},
    {"type": "regex", "regex": "(" * 1_000_000},
    {"type": "json_schema", "json_schema": {"name": "bomb", "schema": nested(7)}},
    {"type": "json_schema", "json_schema": {"name": "bomb", "schema": {"allOf": [{"$ref": "#"}] * 50}}},
    {"type": "regex", "regex": "["},
    {"type": "regex", "regex": "*a"},
    {"type": "grammar", "grammar": "start: nothing"},
]


def test_bombs_are_refused_and_others_do_not_mind(held: Server) -> None:
    with ThreadPoolExecutor(len(BOMBS) + 2) as pool:
        free = pool.submit(ask, held, max_tokens=600, ignore_eos=True)
        refusals = list(pool.map(lambda bomb: ask(held, bomb), BOMBS))
        assert free.result().json()["usage"]["completion_tokens"] == 600
    for refusal in refusals:
        assert refusal.status_code == 400, refusal.text[:300]
        assert refusal.json()["error"]["param"]
        assert len(refusal.text) < 3000
    (text,) = contents(ask(held, WORD))
    assert re.fullmatch("[ab]{4}", text)


def begin(server: Server, response_format: Any) -> socket.socket:
    """A request whose answer nobody reads; closing the socket is its end."""
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "response_format": response_format}).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def earlier_call(city: str) -> dict[str, Any]:
    call = {"name": "w", "arguments": json.dumps({"city": city})}
    return {"messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
    ]} | WEATHER_TOOLS  # fmt: skip


WEATHER_TOOLS = {
    "tools": [{"type": "function", "function": {"name": "w", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False,
    }}}],
    "max_tokens": 5,
}  # fmt: skip


def test_cheap_schemas_do_not_wait_for_dear_ones(embedded_model: Path) -> None:
    """Patterns that may take ten minutes, and did not get far when the answers to others are there."""
    overrides = (*SCRIPTED, "model.max_model_len=1024", "grammar.compile_timeout_s=600")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(embedded_model, *overrides))
        bombs = [
            stack.enter_context(begin(server, {"type": "regex", "regex": "a|b" * 300_000 + str(number)}))
            for number in range(8)
        ]
        while sum(len(builder.children()) for builder in builders(server)) < 2:
            threading.Event().wait(0.01)
        for number in range(3):
            assert contents(ask(server, {"type": "choice", "choice": [f"a{number}", f"b{number}"]}))
            assert contents(ask(server, **earlier_call(f"Rome {number}")))
        answered = select.select(bombs, [], [], 0)[0]
        assert len(answered) < len(bombs)  # a busy machine may have refused some for their age by then


def test_too_large_a_schema_is_refused_before_anything_looks_at_it(held: Server) -> None:
    refusal = ask(held, {"type": "regex", "regex": "a" * (3 << 20)})
    assert refusal.status_code == 400
    assert refusal.json()["error"]["code"] == "schema_too_large"


def test_a_dead_builder_is_replaced(held: Server) -> None:
    contents(ask(held, WORD))
    for builder in builders(held):
        builder.send_signal(signal.SIGKILL)
        builder.wait(10)
    answers = [ask(held, {"type": "choice", "choice": [f"a{number}", "b"]}) for number in range(4)]
    assert {answer.status_code for answer in answers} <= {200, 500}  # a job that a dead builder had may be lost
    assert contents(answers[-1])[0] in ("a3", "b")


def test_a_text_worker_that_comes_back_has_clean_rows(embedded_model: Path) -> None:
    with Server(embedded_model, *SCRIPTED, "model.max_model_len=1024", "engine.scripted_step_us=1000") as server:
        contents(ask(server, WORD))
        worker = server.worker("text-0")
        children = worker.children()
        worker.send_signal(signal.SIGKILL)
        psutil.wait_procs([worker, *children], timeout=10)
        assert not any(child.is_running() for child in children)  # builders die with it
        server.wait_ready_again()
        for _ in range(3):
            (text,) = contents(ask(server, WORD))
            assert re.fullmatch("[ab]{4}", text)


def test_without_grammars_what_is_asked_for_is_checked(embedded_model: Path) -> None:
    with Server(embedded_model, *SCRIPTED, "model.max_model_len=1024", "grammar.enabled=false") as server:
        answer = ask(server, AS_JSON, max_tokens=20)
        assert answer.status_code in (200, 502)
        assert answer.status_code == 502 or answer.json()["choices"][0]["finish_reason"] == "length"

"""What Ollama's clients need of a server, and VS Code's Copilot, which looks for one and then speaks OpenAI's API."""

from __future__ import annotations

import json
import re
from typing import Any

from sparkinfer.doctor.ollama_stream import check_ollama_stream
from sparkinfer.doctor.openai_checks import CHAT, HELLO, SCHEMA, WEATHER, chat_body, expect_good_stream, forced_call
from sparkinfer.doctor.session import Session, expect, expect_keys, expect_no

OLDEST_VERSION = (0, 6, 4)  # that Copilot takes


def _model(session: Session) -> str:
    return str(session.get("/api/tags")["models"][0]["name"])


def _body(session: Session, **fields: Any) -> dict[str, Any]:
    options = {"num_predict": 8, "temperature": 0, "num_ctx": 4096}
    return {"model": _model(session), "messages": HELLO, "options": options} | fields


def greeting(session: Session) -> None:
    """GET and HEAD / greet"""
    answer = session.send("GET", "/")
    expect(answer.status == 200 and "Ollama is running" in answer.text, f"status {answer.status}")
    expect(session.send("HEAD", "/").status == 200, "HEAD / fails")


def version(session: Session) -> None:
    """/api/version is numeric and new enough"""
    text = session.get("/api/version")["version"]
    expect(re.fullmatch(r"\d+\.\d+\.\d+", text), f"{text!r} is not numeric")
    expect(tuple(map(int, text.split("."))) >= OLDEST_VERSION, f"{text} is too old")


def tags(session: Session) -> None:
    """/api/tags and /api/ps have whole objects"""
    for path in ("/api/tags", "/api/ps"):
        (model, *_) = session.get(path)["models"]
        expect_keys(model, "name", "model", "size", "digest", "details")
        expect_keys(model["details"], "format", "family", "families", "parameter_size", "quantization_level")


def show(session: Session) -> None:
    """/api/show has model_info with a context length, and capabilities with tools"""
    shown = session.post("/api/show", {"model": _model(session)}).json()
    expect_keys(shown, "details", "model_info", "capabilities")
    architecture = shown["model_info"].get("general.architecture")
    expect(shown["model_info"].get(f"{architecture}.context_length", 0) > 0, "no context length")
    expect("tools" in shown["capabilities"], "no tools")


def chat(session: Session) -> None:
    """/api/chat streams lines unless told otherwise"""
    answer = session.post("/api/chat", _body(session))
    expect(answer.headers.get("content-type", "").startswith("application/x-ndjson"), "not lines of JSON")
    expect_no(check_ollama_stream(answer.text, is_chat=True))


def whole_chat(session: Session) -> None:
    """/api/chat whole, with durations in nanoseconds"""
    reply = session.post("/api/chat", _body(session, stream=False)).json()
    expect_keys(reply, "message", "done_reason", "total_duration", "eval_count")
    expect(reply["done"] is True and reply["total_duration"] > 1000, "durations are not in nanoseconds")


def generate(session: Session) -> None:
    """/api/generate, and an empty prompt that loads the model"""
    answer = session.post("/api/generate", {"model": _model(session), "prompt": "Hi", "options": {"num_predict": 4}})
    expect_no(check_ollama_stream(answer.text, is_chat=False))
    loaded = session.post("/api/generate", {"model": _model(session)}).json()
    expect(loaded.get("done_reason") == "load", "an empty prompt does not load")


def schema(session: Session) -> None:
    """format: a JSON schema"""
    body = _body(session, stream=False, format=SCHEMA, options={"num_predict": 64})
    text = session.post("/api/chat", body).json()["message"]["content"]
    expect(json.loads(text).get("color") in ("red", "green"), f"does not fit: {text[:80]!r}")


def tools(session: Session) -> None:
    """tools, and the result of a call without an id"""
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "18 C", "tool_name": "get_weather"},
    ]
    offered = [{"type": "function", "function": WEATHER}]
    answer = session.post("/api/chat", _body(session, messages=messages, tools=offered))
    expect_no(check_ollama_stream(answer.text, is_chat=True))


def unknown_model(session: Session) -> None:
    """another model is not found"""
    answer = session.send("POST", "/api/chat", {"model": "no-such-model", "messages": HELLO})
    expect(answer.status == 404 and isinstance(answer.json().get("error"), str), f"status {answer.status}")


def copilot_chat(session: Session) -> None:
    """the chat itself goes to /v1/chat/completions under Ollama's name for the model"""
    tool = {"type": "function", "function": WEATHER}
    body = chat_body(model=_model(session), stream=True, tools=[tool], tool_choice="auto", n=1, top_p=1)
    expect_good_stream(session.post(CHAT, body))


OLLAMA = (greeting, version, tags, show, chat, whole_chat, generate, schema, tools, unknown_model)
COPILOT = (version, tags, show, copilot_chat, forced_call)

"""What OpenAI's clients, and the gateways and pages in front of them, need of a server."""

from __future__ import annotations

import json
from typing import Any

from sparkinfer.doctor.chat_stream import check_chat_stream
from sparkinfer.doctor.session import Answer, Session, expect, expect_keys, expect_no, shortened

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Say hello."}]
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"color": {"type": "string", "enum": ["red", "green"]}},
    "required": ["color"],
    "additionalProperties": False,
}
ORIGIN = "http://localhost:3000"


def chat_body(**fields: Any) -> dict[str, Any]:
    """A small request."""
    return {"model": "default", "messages": HELLO, "max_tokens": 8, "temperature": 0} | fields


def too_long(session: Session) -> str:
    """A text that no context of this server has room for."""
    return "word " * (int(session.get("/v1/info")["max_context"]) + 64)


def expect_answer(session: Session, body: dict[str, Any]) -> None:
    """An assistant's message comes back."""
    (choice,) = session.post(CHAT, body).json()["choices"]
    expect(choice["message"]["role"] == "assistant" and choice["finish_reason"], "no assistant message")


def expect_good_stream(answer: Answer) -> None:
    """It keeps its rules, and tells no error."""
    expect_no(check_chat_stream(answer.events()))
    errors = [event.data["error"] for event in answer.events() if event.data != "[DONE]" and "error" in event.data]
    expect(not errors, f"an error: {shortened(str(errors))}")


def models(session: Session) -> None:
    """GET /v1/models lists the model"""
    (model,) = session.get("/v1/models")["data"]
    expect_keys(model, "id", "created")


def chat(session: Session) -> None:
    """chat, whole"""
    reply = session.post(CHAT, chat_body()).json()
    expect_keys(reply, "id", "object", "created", "model", "choices", "usage")
    (choice,) = reply["choices"]
    expect(choice["message"]["role"] == "assistant" and "content" in choice["message"], "no assistant message")
    expect_keys(choice, "finish_reason")
    expect_keys(reply["usage"], "prompt_tokens", "completion_tokens", "total_tokens")


def chat_stream(session: Session) -> None:
    """chat, streamed: order, one finish_reason, usage, [DONE]"""
    answer = session.post(CHAT, chat_body(stream=True, stream_options={"include_usage": True}))
    expect(answer.headers.get("content-type", "").startswith("text/event-stream"), "not an event stream")
    expect_good_stream(answer)
    expect(any(e.data != "[DONE]" and e.data.get("usage") for e in answer.events()), "no usage")


def several_choices(session: Session) -> None:
    """n = 2"""
    reply = session.post(CHAT, chat_body(n=2, temperature=1)).json()
    expect([choice["index"] for choice in reply["choices"]] == [0, 1], "not two choices")


def logprobs(session: Session) -> None:
    """logprobs with alternatives"""
    reply = session.post(CHAT, chat_body(logprobs=True, top_logprobs=2)).json()
    entries = reply["choices"][0]["logprobs"]["content"]
    expect(entries and len(entries[0]["top_logprobs"]) == 2, "no alternatives")


def completion(session: Session) -> None:
    """a completion"""
    reply = session.post("/v1/completions", {"model": "default", "prompt": "One, two,", "max_tokens": 4}).json()
    expect(isinstance(reply["choices"][0]["text"], str), "no text")


def offered_tool(session: Session) -> None:
    """a tool may be offered"""
    expect_answer(session, chat_body(tools=[{"type": "function", "function": WEATHER}]))


def forced_call(session: Session) -> None:
    """a call that is required comes, and fits its schema; whole and streamed"""
    body = chat_body(messages=QUESTION, max_tokens=128, parallel_tool_calls=False, tool_choice="required",
                     tools=[{"type": "function", "function": WEATHER}])  # fmt: skip
    choice = session.post(CHAT, body).json()["choices"][0]
    (call, *_) = choice["message"].get("tool_calls") or [None]
    expect(call is not None and choice["finish_reason"] == "tool_calls", "no call")
    expect(call["function"]["name"] == "get_weather" and call["id"], "not the offered function")
    expect("city" in json.loads(call["function"]["arguments"]), "the arguments do not fit the schema")
    expect_good_stream(session.post(CHAT, body | {"stream": True}))


def call_history(session: Session) -> None:
    """a conversation with a call and its result"""
    call = {"id": "call_abc-123456", "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}  # fmt: skip
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_abc-123456", "content": [{"type": "text", "text": "18 C"}]},
    ]
    expect_answer(session, chat_body(messages=messages, tools=[{"type": "function", "function": WEATHER}]))


def json_schema(session: Session) -> None:
    """response_format json_schema"""
    form = {"type": "json_schema", "json_schema": {"name": "color", "schema": SCHEMA, "strict": True}}
    reply = session.post(CHAT, chat_body(response_format=form, max_tokens=64)).json()
    text = reply["choices"][0]["message"]["content"]
    expect(json.loads(text).get("color") in ("red", "green"), f"does not fit: {text[:80]!r}")


def errors(session: Session) -> None:
    """a bad request is told: type, param"""
    answer = session.send("POST", CHAT, chat_body(temperature=9))
    expect(answer.status == 400, f"status {answer.status}")
    expect_keys(answer.json()["error"], "message", "type", "param")


def overflow(session: Session) -> None:
    """a prompt that is too long gets 400, code and the classic sentence"""
    answer = session.send("POST", CHAT, chat_body(messages=[{"role": "user", "content": too_long(session)}]))
    expect(answer.status == 400, f"status {answer.status}")
    error = answer.json()["error"]
    expect(error["code"] == "context_length_exceeded", f"code {error['code']}")
    expect("maximum context length is" in error["message"], "not the sentence that agents look for")


def late_system(session: Session) -> None:
    """system and developer messages in mid-conversation"""
    messages = [
        {"role": "system", "content": "Be brief."}, *HELLO, {"role": "assistant", "content": "Hello."},
        {"role": "developer", "content": "Now be long."}, *HELLO,
    ]  # fmt: skip
    expect_answer(session, chat_body(messages=messages))


def preflight(session: Session) -> None:
    """a browser's preflight passes without a key"""
    asked = {"origin": ORIGIN, "access-control-request-method": "POST", "authorization": "",
             "access-control-request-headers": "authorization,content-type"}  # fmt: skip
    answer = session.send("OPTIONS", CHAT, headers=asked)
    expect(answer.status in (200, 204), f"status {answer.status}")
    expect("access-control-allow-origin" in answer.headers, "no CORS headers")
    expect("authorization" in answer.headers.get("access-control-allow-headers", "").lower(), "no key may be sent")


def cors(session: Session) -> None:
    """every reply to a browser has CORS headers: lists, errors, streams"""
    browser = {"origin": ORIGIN}
    answers = [
        session.send("GET", "/v1/models", headers=browser),
        session.send("POST", CHAT, chat_body(temperature=9), browser),
        session.send("POST", CHAT, chat_body(stream=True), browser),
    ]
    expect(all("access-control-allow-origin" in answer.headers for answer in answers), "missing on some")


def reasoning(session: Session) -> None:
    """thinking can be asked for, and comes in both fields when it comes"""
    message = session.post(CHAT, chat_body(enable_thinking=True, max_tokens=16)).json()["choices"][0]["message"]
    expect(message.get("reasoning") == message.get("reasoning_content"), "the two fields differ")
    expect("<think>" not in (message["content"] or ""), "thinking is part of the content")


def provider_schema(session: Session) -> None:
    """/v1/models follows OpenRouter's provider schema"""
    (model,) = session.get("/v1/models")["data"]
    expect_keys(model, "schema_version", "id", "name", "created", "is_ready", "input_modalities", "output_modalities")
    expect("hugging_face_id" in model and "quantization" in model, "hugging_face_id and quantization must be there")
    (text_in, *_), (text_out, *_) = model["input_modalities"], model["output_modalities"]
    expect(text_in["supported_inputs"]["max_context_length"]["value"] > 0, "no context length")
    expect(text_out["max_length"]["value"] > 0 and text_out["streaming"] is True, "no output length")
    prices = [price["cost_usd"] for part in (text_in, text_out) for price in part.get("pricing", [])]
    expect(all(isinstance(price, str) for price in prices), "prices must be strings")


OPENAI = (models, chat, chat_stream, several_choices, logprobs, completion, offered_tool, forced_call, call_history,
          json_schema, late_system, errors, overflow)  # fmt: skip
OPEN_WEBUI = (preflight, cors, models, chat_stream, reasoning, call_history)
OPENROUTER = (provider_schema, chat, chat_stream, offered_tool, errors, overflow)

"""LangChain's models for OpenAI, Anthropic and Ollama: whole, streamed, tools, forms. Usage: use_langchain.py URL"""

from __future__ import annotations

import sys
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL = sys.argv[1]


@tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"18 C in {city}"


class Color(BaseModel):
    """A color."""

    color: str


MODELS: dict[str, Any] = {
    "openai": ChatOpenAI(model="default", base_url=f"{URL}/v1", api_key="none", max_retries=0),
    "openai responses": ChatOpenAI(
        model="default", base_url=f"{URL}/v1", api_key="none", max_retries=0, use_responses_api=True
    ),
    "anthropic": ChatAnthropic(model="default", base_url=URL, api_key="none", max_retries=0, max_tokens=64),
    "ollama": ChatOllama(model="default", base_url=URL),
}

for name, model in MODELS.items():
    messages: list[Any] = [SystemMessage("Be brief."), HumanMessage("Say hello.")]
    reply = model.invoke(messages)
    assert reply.text, name
    assert reply.usage_metadata["input_tokens"] > 0, name
    whole = None
    for chunk in model.stream(messages):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None, name
    assert whole.text == reply.text, (name, whole.text, reply.text)
    called = model.bind_tools([get_weather]).invoke(messages)
    assert isinstance(called, AIMessage), name
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"}), (name, call)
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    assert model.bind_tools([get_weather]).invoke([*messages, called, result]).text, name
    streamed = None
    for chunk in model.bind_tools([get_weather]).stream(messages):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None, name
    assert [c["args"] for c in streamed.tool_calls] == [{"city": "Paris"}], name
    if name != "anthropic":  # which asks for a form by a tool it forces
        form = model.with_structured_output(Color, method="json_schema")
        assert form.invoke(messages) == Color(color="red"), name
    print(name, "ok")

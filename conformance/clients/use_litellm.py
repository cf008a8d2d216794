"""LiteLLM through four of its providers: whole, streamed, with a tool. Usage: use_litellm.py URL"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no download of prices

import litellm

URL = sys.argv[1]
HELLO = [{"role": "user", "content": "Say hello."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PROVIDERS: dict[str, dict[str, Any]] = {
    "openai/default": {"api_base": f"{URL}/v1"},
    "anthropic/default": {"api_base": URL},
    "ollama_chat/default": {"api_base": URL},
    "lm_studio/default": {"api_base": f"{URL}/v1"},
}


def ask(model: str, **fields: Any) -> Any:
    options = {"api_key": "none", "max_tokens": 16, "timeout": 60, "num_retries": 0}
    return litellm.completion(model=model, messages=HELLO, **(options | PROVIDERS[model] | fields))


for model in PROVIDERS:
    reply = ask(model)
    assert reply.choices[0].message.content, model
    assert reply.usage.prompt_tokens > 0, model
    chunks = list(ask(model, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), model
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] in (["stop"], ["length"]), (model, reasons)
    call = ask(model, tools=[TOOL]).choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather", model
    assert json.loads(call.function.arguments) == {"city": "Paris"}, model
    print(model, "ok")

response = litellm.responses(model="openai/default", input="Say hello.", api_key="none", api_base=f"{URL}/v1")
assert response.output[0].content[0].text
print("responses ok")
try:
    ask("openai/default", temperature=9)
except litellm.BadRequestError:
    print("errors ok")
else:
    sys.exit("a bad request was no error")

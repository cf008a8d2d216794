"""Rendering equals golden prompts and transformers."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from sparkinfer.errors import RequestError
from sparkinfer.request import ChatPrompt
from sparkinfer.text.chat_template import ChatTemplate
from tests.text.conversations import (
    NAMES,
    SEARCH,
    TEMPLATES,
    assistant,
    call,
    chat,
    from_openai,
    source,
    system,
    tool,
    user,
)

GOLDENS = json.loads((TEMPLATES / "chat_goldens.json").read_text())


@pytest.mark.parametrize("case", GOLDENS, ids=[case["case"] for case in GOLDENS])
def test_goldens(templates: dict[str, ChatTemplate], case: dict[str, Any]) -> None:
    fields = dict(case["input"])
    prompt = from_openai(
        fields.pop("messages"), add_generation_prompt=fields.pop("add_generation_prompt", True), template_kwargs=fields
    )
    if "error" in case:
        with pytest.raises(RequestError, match=case["error"]) as caught:
            templates["chatml_strict"].render(prompt)
        assert (caught.value.status, caught.value.param) == (400, "messages")
    else:
        assert templates["chatml_strict"].render(prompt).text == case["text"]


CONVERSATIONS = [
    chat(user("Hello"), tools=(SEARCH,)),
    chat(system("Be a pirate."), user("Hello"), tools=(SEARCH,)),
    chat(user("a"), assistant("b"), user("c"), tools=(SEARCH,), template_kwargs={"enable_thinking": False}),
    chat(system("s"), user("日本語 🦙 e\u0301 \x00"), assistant("  b\n"), user("{{ 7 * 7 }} {% raw"), tools=(SEARCH,)),
    chat(
        user("q"), assistant(None, reasoning="hm", tool_calls=(call(), call())), tool("1"), tool("2"), tools=(SEARCH,)
    ),
    chat(user("q"), assistant("<think>\nhm\n</think>\n\nyes."), add_generation_prompt=False, tools=(SEARCH,)),
    chat(user("q"), assistant("hm</think>yes"), user("> quoted <"), tools=(SEARCH,)),
    chat(system(""), user(""), assistant(""), user("end."), tools=(SEARCH,), template_kwargs={"reasoning_effort": 1}),
    chat(*[user(str(i)) if i % 2 == 0 else assistant("r" * i) for i in range(21)], tools=(SEARCH,)),
]


def by_transformers(name: str, prompt: ChatPrompt) -> str | None:
    """The prompt by transformers' apply_chat_template, None if the template refuses it."""
    reference = PreTrainedTokenizerFast(
        tokenizer_object=Backend(models.BPE()), chat_template=source(name), bos_token="<bos>", eos_token="<|endoftext|>"
    )
    messages: list[dict[str, Any]] = []
    for message in prompt.messages:
        fields: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.reasoning is not None:
            fields["reasoning_content"] = message.reasoning
        if message.tool_calls:
            fields["tool_calls"] = [
                {"type": "function", "id": c.id, "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
                for c in message.tool_calls
            ]
        messages.append(fields)
    try:
        text = reference.apply_chat_template(
            messages, tools=[json.loads(tool.definition) for tool in prompt.tools] or None, tokenize=False,
            add_generation_prompt=prompt.add_generation_prompt, **prompt.template_kwargs,
        )
    except (ValueError, jinja2.TemplateError):
        return None
    return str(text)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("index", range(len(CONVERSATIONS)))
def test_equals_transformers(templates: dict[str, ChatTemplate], name: str, index: int) -> None:
    prompt = CONVERSATIONS[index]
    expected = by_transformers(name, prompt)
    if expected is None:
        with pytest.raises(RequestError):
            templates[name].render(prompt)
    else:
        assert templates[name].render(prompt).text == expected

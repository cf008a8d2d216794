"""From a request to what its answer has to obey and how it is read, with a template that knows tools and thinks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkinfer.request import (
    ChatPrompt,
    ChoiceFormat,
    Message,
    Request,
    RequestId,
    TextPrompt,
    Tool,
    ToolCall,
    ToolPolicy,
)
from sparkinfer.sampling_params import SamplingParams
from sparkinfer.text.chat_template import ChatTemplate
from sparkinfer.text.choice_stream import ChoiceStream
from sparkinfer.text.prompt_encoder import EncodedPrompt, PromptEncoder
from sparkinfer.text.tokenizer import Tokenizer

TEMPLATE = (Path(__file__).parent.parent / "data" / "templates" / "chatml_strict.jinja").read_text()
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}, "required": ["q"]}
TOOL = Tool(
    name="look",
    definition=json.dumps({"type": "function", "function": {"name": "look", "parameters": SCHEMA}}),
    parameters=json.dumps(SCHEMA),
)
USER = Message(role="user", content="hi")
CALL = (
    "<tool_call>\n<function=look>\n<parameter=q>\na < b\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n"
    "</tool_call>"
)


@pytest.fixture(scope="module")
def encoder(qwen35: Tokenizer) -> PromptEncoder:
    return PromptEncoder(qwen35, ChatTemplate(TEMPLATE, qwen35))


def encode(encoder: PromptEncoder, prompt: Any, **fields: Any) -> EncodedPrompt:
    request = Request(request_id=RequestId(1), prompt=prompt, sampling=SamplingParams(max_tokens=9), **fields)
    return encoder.encode_request(request, 10_000)


def chat(*messages: Message, thinks: bool = True, tools: tuple[Tool, ...] = (TOOL,)) -> ChatPrompt:
    kwargs = {} if thinks else {"enable_thinking": False}
    return ChatPrompt(messages=messages or (USER,), tools=tools, template_kwargs=kwargs)


@pytest.mark.parametrize("thinks", [True, False])
def test_the_grammar_starts_where_the_prompt_ends(encoder: PromptEncoder, thinks: bool) -> None:
    spec = encode(encoder, chat(thinks=thinks), tool_policy=ToolPolicy(choice="required")).grammar_spec
    assert spec is not None
    assert (spec.protocol, spec.tools, spec.policy.choice) == ("qwen_xml", (TOOL,), "required")
    assert (spec.can_reason, spec.starts_in_reasoning) == (thinks, thinks)
    assert "</think>" in spec.special_tokens


def test_free_answers_have_none(encoder: PromptEncoder) -> None:
    assert encode(encoder, chat(tools=())).grammar_spec is None
    assert encode(encoder, TextPrompt(text="x")).grammar_spec is None
    formatted = encode(encoder, TextPrompt(text="x"), output_format=ChoiceFormat(("a",))).grammar_spec
    assert formatted is not None
    assert (formatted.protocol, formatted.can_reason) == ("", False)


def test_hidden_tools_stay_out_of_the_prompt_and_in_the_rules(encoder: PromptEncoder) -> None:
    hidden = encode(encoder, chat(), tool_policy=ToolPolicy(choice="none"))
    assert "look" not in encoder.tokenizer.decode(hidden.token_ids)
    assert hidden.grammar_spec is not None
    assert hidden.grammar_spec.tools == (TOOL,)
    assert "look" in encoder.tokenizer.decode(encode(encoder, chat()).token_ids)


def test_earlier_calls_are_to_be_checked(encoder: PromptEncoder) -> None:
    called = Message(role="assistant", tool_calls=(ToolCall(id="a", name="look", arguments='{"q": 5}'),))
    messages = (USER, called, Message(role="tool", content="1", tool_call_id="a"))
    check = encode(encoder, chat(*messages)).earlier_calls
    assert check is not None
    assert check.calls == (("messages[1].tool_calls[0].function.arguments", 0, '{"q": 5}'),)
    assert check.schemas == (TOOL.parameters,)
    assert encode(encoder, chat(*messages, tools=())).earlier_calls is None


REPLIES = [
    (True, "Use <interface> here\n</think>\n\nOf course.\n\n" + CALL, "Use <interface> here", "Of course."),
    (True, "<think>\nhm\n</think>\n\n" + CALL, "hm", ""),
    (False, "Of course.\n\n" + CALL, "", "Of course."),
]


@pytest.mark.parametrize(("thinks", "reply", "reasoning", "content"), REPLIES)
def test_a_reply_is_read_token_by_token(
    encoder: PromptEncoder, thinks: bool, reply: str, reasoning: str, content: str
) -> None:
    """Tags are tokens of their own in this vocabulary."""
    encoded = encode(encoder, chat(thinks=thinks))
    tokenizer = encoder.tokenizer
    token_ids = tokenizer.encode_rendered(tokenizer.special_text.parse(reply))
    assert tokenizer.vocabulary.structural_ids["<tool_call>"] in token_ids
    stream = ChoiceStream(tokenizer, encoded.stream)
    deltas = []
    for token_id in token_ids:
        stream.push(token_id)
        deltas += stream.take()
    deltas += stream.finish()
    assert stream.failure is None
    assert "".join(delta.reasoning for delta in deltas) == reasoning
    assert "".join(delta.content for delta in deltas) == content
    calls = [call for delta in deltas for call in delta.tool_calls]
    assert json.loads("".join(call.arguments for call in calls)) == {"q": "a < b", "n": 3}

"""Whole answers over real vocabularies: a walk through the masks always ends, and our own readers take what it brings.

SPARKINFER_WALKS in the environment of a run says how many walks there are for each request; a few without it.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from sparkinfer.grammar.checker import first_violation
from sparkinfer.grammar.grammar_spec import GrammarSpec
from sparkinfer.grammar.vocabulary import GrammarVocabulary
from sparkinfer.request import (
    ChatPrompt,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    Request,
    RequestId,
    Tool,
    ToolPolicy,
)
from sparkinfer.sampling_params import SamplingParams
from sparkinfer.text.answer_grammar import answer_grammar
from sparkinfer.text.choice_stream import ChoiceStream, ReplyFormat, StreamOptions
from sparkinfer.text.reply_options import content_options
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.text.tool_protocols.protocol import ToolProtocol
from tests.grammar.walks import Walker

NUM_WALKS = int(os.environ.get("SPARKINFER_WALKS", "3"))

SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1},
        "limit": {"type": "integer", "minimum": 1, "maximum": 10},
        "style": {"type": "string", "enum": ["brief", "detailed"]},
        "filter": {
            "type": "object",
            "properties": {"category": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
            "required": ["category"],
            "additionalProperties": False,
        },
        "since": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    },
    "required": ["query", "limit"],
    "additionalProperties": False,
}
ZONE = {"type": "string", "pattern": "^[A-Z][a-z]+/[A-Z][a-z]+$"}
CLOCK = {"type": "object", "properties": {"zone": ZONE}, "required": ["zone"]}
TOOLS = tuple(
    Tool(name=name, definition="{}", parameters=json.dumps(schema))
    for name, schema in (("search_catalog", SEARCH), ("get_time", CLOCK))
)
REPORT = {
    "$defs": {"price": {"type": "number", "minimum": 0, "maximum": 1000}},
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 12},
        "prices": {"type": "array", "items": {"$ref": "#/$defs/price"}, "minItems": 1, "maxItems": 3},
        "step": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
        "mark": {"enum": ["<b>", "x < 1"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["title", "prices", "note"],
    "additionalProperties": False,
}
AS_REPORT = JsonSchemaFormat(schema=json.dumps(REPORT))

SHAPES: dict[str, dict[str, Any]] = {
    "auto": {"tools": TOOLS},
    "required": {"tools": TOOLS, "policy": ToolPolicy(choice="required")},
    "named": {"tools": TOOLS, "policy": ToolPolicy(choice="required", allowed=("get_time",))},
    "one call": {"tools": TOOLS, "policy": ToolPolicy(choice="required", parallel=False)},
    "object": {"output_format": JsonObjectFormat()},
    "schema": {"output_format": AS_REPORT},
    "tools or schema": {"tools": TOOLS, "output_format": AS_REPORT},
}


@pytest.fixture(scope="module", params=["smollm2", "qwen35"])
def model(request: pytest.FixtureRequest) -> tuple[Tokenizer, ToolProtocol, Walker]:
    tokenizer = request.getfixturevalue(request.param)
    protocol = ToolProtocol.QWEN_XML if request.param == "qwen35" else ToolProtocol.HERMES
    vocabulary = GrammarVocabulary(tokenizer)
    return tokenizer, protocol, Walker(vocabulary.backend, tokenizer.token_bytes, compile_=vocabulary.compiled)


@pytest.mark.parametrize("thinks", [False, True], ids=["plain", "thinking"])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_every_walk_is_an_answer(model: tuple[Tokenizer, ToolProtocol, Walker], shape: str, thinks: bool) -> None:
    tokenizer, protocol, walker = model
    fields = SHAPES[shape]
    special = tuple(sorted(tokenizer.vocabulary.structural_ids))
    if thinks and "</think>" not in special:
        pytest.skip("the model does not think")
    spec = GrammarSpec(
        special_tokens=special, protocol=protocol, starts_in_reasoning=thinks,
        can_reason="</think>" in special, **fields,
    )  # fmt: skip
    grammar = answer_grammar(spec)
    assert grammar.approximations == ()
    start = walker.compile(grammar)
    options = StreamOptions(
        content_options(as_request(spec), protocol).enforced(()),
        ReplyFormat.THINK if "</think>" in special else ReplyFormat.PLAIN, thinks,
    )  # fmt: skip
    num_ended = 0
    for number in range(NUM_WALKS):
        tokens = walker.walk(start, num_free=walker.rng.choice([0, 8, 30]), num_steps=600)
        if tokens is None:
            continue
        num_ended += 1
        check(spec, ChoiceStream(tokenizer, options), tokens, number)
        walker.bytes(tokens).decode("utf-8")
    assert num_ended > NUM_WALKS // 2, num_ended


def as_request(spec: GrammarSpec) -> Request:
    prompt = ChatPrompt(messages=(Message(role="user", content="?"),), tools=spec.tools)
    return Request(
        request_id=RequestId(1), prompt=prompt, sampling=SamplingParams(max_tokens=1), tool_policy=spec.policy,
        output_format=spec.output_format,
    )  # fmt: skip


def check(spec: GrammarSpec, stream: ChoiceStream, tokens: list[int], number: int) -> None:
    """Read the tokens as the text worker does, taking deltas now and then."""
    deltas = []
    for i, token in enumerate(tokens):
        stream.push(token)
        if i % (number % 5 + 1) == 0:
            deltas += stream.take()
    deltas += stream.finish()
    assert stream.failure is None, (stream.failure, tokens)
    content = "".join(delta.content for delta in deltas)
    calls: dict[int, list[str]] = {}
    for call in (call for delta in deltas for call in delta.tool_calls):
        entry = calls.setdefault(call.index, ["", ""])
        entry[0] += call.name
        entry[1] += call.arguments
    check_policy(spec, content, calls)
    schemas = {tool.name: json.loads(tool.parameters) for tool in spec.tools}
    for name, arguments in calls.values():
        assert first_violation(schemas[name], json.loads(arguments)) is None, (name, arguments)
    if spec.output_format is not None and not calls:
        schema = REPORT if spec.output_format is AS_REPORT else {"type": "object"}
        assert first_violation(schema, json.loads(content)) is None, content
    assert not any(marker in content for marker in ("<tool_call>", "</tool_call>", "</think>", "<function="))


def check_policy(spec: GrammarSpec, content: str, calls: dict[int, list[str]]) -> None:
    policy = spec.policy
    assert sorted(calls) == list(range(len(calls)))
    if spec.tools and policy.choice == "required":
        assert calls
        assert not content
    if not policy.parallel:
        assert len(calls) <= 1
    if policy.allowed:
        assert {name for name, _ in calls.values()} <= set(policy.allowed)
    if not spec.tools:
        assert not calls

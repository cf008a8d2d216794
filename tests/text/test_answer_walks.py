"""A random walk through an answer's grammar always gets to an end, and the readers find nothing wrong with it."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from sparkinfer.grammar.checker import first_violation
from sparkinfer.request import ChatPrompt, Message, OutputFormat, RegexFormat, Request, RequestId, ToolPolicy
from sparkinfer.sampling_params import SamplingParams
from sparkinfer.text.answer_grammar import answer_grammar
from sparkinfer.text.content_filter import ContentFilter
from sparkinfer.text.output_parser import OutputParser
from sparkinfer.text.reply_options import content_options
from sparkinfer.text.segment_parser import SegmentParser
from sparkinfer.text.tool_protocols.protocol import ToolProtocol
from tests.text.answers import (
    HERMES,
    MUSE,
    NAMED,
    NONE,
    PERSON,
    PERSON_FORMAT,
    QWEN,
    REQUIRED,
    SINGLE,
    TOOLS,
    Model,
    spec,
)

ENDS = [b"\n</parameter>", b"</atem:parameter>"]


def way_out(tokens: list[int]) -> int | None:
    """The byte that goes on with the end of a value, if one has begun."""
    tail = bytes(token for token in tokens[-20:] if token < 256)
    lengths = [(n, end) for end in ENDS for n in range(1, len(end)) if tail.endswith(end[:n])]
    if not lengths:
        return None
    length, end = max(lengths)
    return end[length]


def walk(model: Model, rng: random.Random, most: int = 3000) -> list[int] | None:
    """Tokens of a random answer, None if it takes too long. Ends where it may, now and then."""
    words = np.zeros(-(-(256 + len(model.special) + 1) // 32), np.int32)
    end = 256 + len(model.special)
    tokens: list[int] = []
    while len(tokens) < most:
        model.matcher.fill(words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[: end + 1]).tolist()
        assert allowed, f"dead end after {model.text(tokens)!r}"
        structure = [token for token in allowed if token >= 256 or chr(token) in '"}]\n<>/']
        token = rng.choice(structure if structure and rng.random() < 0.6 else allowed)
        if (out := way_out(tokens)) in allowed and rng.random() < 0.9:
            token = out
        if token == end:
            return tokens
        model.matcher.accept(token)
        tokens.append(token)
    return None


SHAPES: list[tuple[ToolPolicy, OutputFormat | None]] = [
    (ToolPolicy(), None), (REQUIRED, None), (NAMED, None), (SINGLE, None), (NONE, None),
    (ToolPolicy(), PERSON_FORMAT), (NONE, PERSON_FORMAT),
    (ToolPolicy(), RegexFormat("(.|\\n)*")), (NONE, RegexFormat("[a-z<>/_ \\n]*")),
]  # fmt: skip


@pytest.mark.parametrize("protocol", [QWEN, HERMES, MUSE])
@pytest.mark.parametrize(("policy", "output_format"), SHAPES)
@pytest.mark.parametrize("thinks", [False, True])
def test_whatever_the_grammar_lets_out_is_read_and_right(
    protocol: ToolProtocol, policy: ToolPolicy, output_format: OutputFormat | None, thinks: bool
) -> None:
    thinking = {"starts_in_reasoning": True, "can_reason": True} if thinks and protocol is QWEN else {}
    grammar = answer_grammar(spec(protocol, policy=policy, output_format=output_format, **thinking))
    assert grammar.approximations == ()
    prompt = ChatPrompt(messages=(Message(role="user", content="x"),), tools=TOOLS)
    request = Request(
        request_id=RequestId(1), prompt=prompt, sampling=SamplingParams(max_tokens=9), tool_policy=policy,
        output_format=output_format,
    )  # fmt: skip
    options = content_options(request, protocol).enforced(grammar.approximations)
    rng = random.Random(f"{protocol} {policy} {output_format} {thinks}")
    compiled = Model(protocol, grammar)
    start = compiled.matcher
    num_finished = 0
    for _ in range(8):
        compiled.matcher = start.copy()
        tokens = walk(compiled, rng)
        if tokens is None:
            continue
        num_finished += 1
        text = compiled.text(tokens)
        parser: Any = SegmentParser() if protocol is MUSE else OutputParser(bool(thinking))
        content = "".join(parser.push(char)[1] for char in text) + parser.flush()[1]
        check_answer(ContentFilter(options), content, policy, output_format)
    assert num_finished


def check_answer(
    content_filter: ContentFilter, content: str, policy: ToolPolicy, output_format: OutputFormat | None
) -> None:
    shown, deltas = "", []
    for char in content:
        shown += content_filter.push(char)
        deltas += content_filter.take_calls()
    shown += content_filter.flush(is_complete=True)
    assert content_filter.failure is None
    calls: list[list[str]] = []
    for delta in deltas:
        if delta.name:
            calls.append([delta.name, ""])
        calls[-1][1] += delta.arguments
    for name, arguments in calls:
        schema = next(json.loads(tool.parameters) for tool in TOOLS if tool.name == name)
        assert first_violation(schema, json.loads(arguments)) is None
        assert not policy.allowed or name in policy.allowed
    assert policy.choice != "required" or calls
    assert policy.choice != "none" or not calls
    assert policy.parallel or len(calls) <= 1
    if output_format is PERSON_FORMAT and not calls:
        assert first_violation(PERSON, json.loads(shown)) is None

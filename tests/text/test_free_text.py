"""Masks of free text worked out by us are llguidance's own, bit for bit, wherever a random answer goes."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from sparkinfer.grammar.free_text import FreeTextMasks, TokenTexts, Validate, Words
from sparkinfer.grammar.grammar_spec import GrammarSpec
from sparkinfer.grammar.matcher import Matcher
from sparkinfer.grammar.vocabulary import GrammarVocabulary
from sparkinfer.request import (
    ChoiceFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    OutputFormat,
    RegexFormat,
    Tool,
    ToolPolicy,
)
from sparkinfer.text.answer_grammar import answer_grammar
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.text.tool_protocols.call_grammar import MARKUP
from sparkinfer.text.tool_protocols.protocol import ToolProtocol

NUM_STEPS = 40  # of each walk
ENDS = (b"\n</parameter>\n", b"</atem:parameter>\n")
STRING = {"type": "string"}
SHORT, EXACT = STRING | {"maxLength": 4}, STRING | {"minLength": 9, "maxLength": 9}
# What the arguments of a function may be
PROPERTIES: dict[str, dict[str, Any]] = {
    "free": {"a": STRING, "b": {"type": "integer"}},
    "limited": {"a": STRING | {"maxLength": 40}, "b": EXACT, "c": STRING | {"minLength": 7}, "d": SHORT},
    "much": {"a": STRING | {"maxLength": 100_000}},
    "pattern": {"a": SHORT, "b": STRING | {"pattern": "^[^x]*$", "maxLength": 30}, "c": STRING | {"pattern": "b$"}},
    "excluded": {"a": SHORT | {"not": {"const": "<b>"}}, "b": {"enum": ["a\n", "</para", 7]}, "c": EXACT},
    "mixed": {"a": {"type": ["string", "object", "null"], "maxLength": 3}, "b": {"anyOf": [SHORT, {"const": "abcde"}]}},
    "rivals": {
        "a": {"type": ["string", "null"], "maxLength": 20},
        "b": {"anyOf": [STRING | {"minLength": 2, "maxLength": 5}, {"type": "array"}, {"enum": ["<b", "^]long", 12]}]},
        "c": STRING | {"maxLength": 4, "not": {"enum": ["abcd", "-</p", "]", ""]}},
    },
    "odd literal": {"a": {"enum": ["\x01\x01", "b"]}, "b": SHORT},
    "format": {"a": EXACT, "b": STRING | {"format": "email"}},
}  # fmt: skip
SCHEMAS: dict[str, Any] = {
    name: {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    for name, properties in PROPERTIES.items()
} | {
    "two ways": {"anyOf": [
        {"properties": {"a": SHORT}, "required": ["a"]},
        {"properties": {"a": {"type": "object"}, "b": SHORT}, "required": ["a", "b"]},
    ]},
    "any names": {"additionalProperties": SHORT, "minProperties": 1},
    "name patterns": {"patternProperties": {"^a": SHORT, "b$": {"const": "abcdefghi"}}, "minProperties": 1},
}  # fmt: skip
FORMATS: dict[str, OutputFormat | None] = {
    "text": None,
    "object": JsonObjectFormat(),
    "schema": JsonSchemaFormat(schema=json.dumps(SCHEMAS["limited"])),
    "regex": RegexFormat("[^<]{3,9}|\x01*"),
    "choice": ChoiceFormat(("\x01\x01\x01", "<tool", "abc")),
}


class Walk:
    """Matchers of the same grammar, one of which works out masks by itself."""

    def __init__(self, vocabulary: GrammarVocabulary, tokenizer: Tokenizer, spec: GrammarSpec, seed: object) -> None:
        grammar = answer_grammar(spec)
        self._fast, self._slow = vocabulary.compiled(grammar), Matcher.compile(grammar, vocabulary.backend)
        self._rng = random.Random(str(seed))
        self._mask, self._expected = (np.zeros(-(-tokenizer.vocab_size // 32), np.int32) for _ in range(2))
        self._written = b""
        self._stops = tokenizer.stop_token_ids
        self._text = tokenizer.token_bytes
        tags = [text.encode() for text in (*MARKUP[spec.protocol], "\n<b></b>\n", "</parameter>\n</function>\n")]
        self._pieces = [i for i in range(tokenizer.vocab_size) if any(self._text(i) in tag for tag in tags)]

    def step(self) -> bool:
        """Compare the masks and take a token; False at the end of the answer."""
        self._fast.fill(self._mask)
        self._slow.fill(self._expected)
        wrong = np.flatnonzero(np.unpackbits((self._mask ^ self._expected).view(np.uint8), bitorder="little"))
        assert not len(wrong), [self._text(int(token)) for token in wrong[:5]]
        is_allowed = np.unpackbits(self._mask.view(np.uint8), bitorder="little")
        token = self._choice(is_allowed)
        if token in self._stops:
            return False
        self._fast.accept(token)
        self._slow.accept(token)
        self._written += self._text(token)
        return True

    def _choice(self, is_allowed: np.ndarray) -> int:
        """The end of a value, where it has begun or by chance; a part of some tag; or anything."""
        pieces = [token for token in self._pieces if is_allowed[token]]
        ways_out = [
            token for token in pieces
            if any(end.startswith(self._written[-n:] + self._text(token)) for end in ENDS for n in range(1, len(end)))
            or self._text(token) in (b"\n", b"</")
        ]
        if ways_out and self._rng.random() < 0.6:
            return self._rng.choice(ways_out)
        if pieces and self._rng.random() < 0.6:
            return self._rng.choice(pieces)
        return int(self._rng.choice(np.flatnonzero(is_allowed)))


def compare(vocabulary: GrammarVocabulary, tokenizer: Tokenizer, spec: GrammarSpec, num_steps: int) -> None:
    seed = 0
    while num_steps > 0:
        walk, seed = Walk(vocabulary, tokenizer, spec, (seed, spec)), seed + 1
        num_steps -= 1
        while num_steps > 0 and walk.step():
            num_steps -= 1


def specs(tokenizer: Tokenizer) -> dict[str, GrammarSpec]:
    special = tuple(sorted(tokenizer.vocabulary.structural_ids))
    found = {}
    for protocol in (ToolProtocol.QWEN_XML, ToolProtocol.MUSE):
        for name, schema in SCHEMAS.items():
            tool = Tool(name="save", definition="{}", parameters=json.dumps(schema))
            found[f"{protocol}, {name}"] = GrammarSpec(
                special_tokens=special, protocol=protocol, tools=(tool,), policy=ToolPolicy(choice="required"),
                starts_in_reasoning=name == "free",
            )
    tools = tuple(
        Tool(name=f"f{i}", definition="{}", parameters=json.dumps(schema))
        for i, (name, schema) in enumerate(SCHEMAS.items()) if name != "odd literal"
    )
    for protocol in ToolProtocol:
        found[f"{protocol}, all"] = GrammarSpec(special_tokens=special, protocol=protocol, tools=tools, can_reason=True)
    for name, output_format in FORMATS.items():
        found[name] = GrammarSpec(
            special_tokens=special, protocol=ToolProtocol.QWEN_XML, output_format=output_format, can_reason=True
        )
    return found


@pytest.fixture(scope="module")
def vocabulary(smollm2: Tokenizer) -> GrammarVocabulary:
    return GrammarVocabulary(smollm2)


def test_masks_are_llguidances(
    smollm2: Tokenizer, vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, is_ours = FreeTextMasks.fill, []

    def counted(masks: FreeTextMasks, words: Words, recent: bytes, validate: Validate) -> bool:
        is_ours.append(fill(masks, words, recent, validate))
        return is_ours[-1]

    monkeypatch.setattr(FreeTextMasks, "fill", counted)
    for name, spec in specs(smollm2).items():
        try:
            compare(vocabulary, smollm2, spec, NUM_STEPS)
        except AssertionError as error:
            raise AssertionError(name) from error
    assert 0.2 * len(is_ours) < sum(is_ours) < len(is_ours)


@pytest.mark.parametrize(
    ("text", "num_chars"),
    [
        (b"", 0), (b"abc", 3), ("\u00e9<\u20ac".encode(), 3), ("\U0001f600".encode(), 1),
        (b"a\xe2\x82", 2), (b"\xf0", 1), (b"\xf4", 1), (b"\xe0", 1), (b"\xf4\x90", 0),
        (b"\x80", 0), (b"\x82\xac a", 0), (b"a\xff", 0), (b"\xe2a", 0), (b"\xc0\x80", 0), (b"\xed\xa0", 0),
    ],
)  # fmt: skip
def test_characters_are_counted_from_their_first_byte(text: bytes, num_chars: int) -> None:
    assert TokenTexts([text], ()).num_chars.tolist() == [num_chars]


def test_without_the_probe_masks_are_left_to_llguidance(smollm2: Tokenizer) -> None:
    form = answer_grammar(specs(smollm2)["qwen_xml, limited"]).free_text
    assert form is not None
    masks, words = FreeTextMasks(TokenTexts([b"a", b"<", b"b"], ()), form), np.zeros(1, np.int32)
    assert not masks.fill(words, b"a <", lambda token_ids: len(token_ids))

"""What tests of answers' grammars share: two functions, a vocabulary of bytes, answers as protocols have them."""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLTokenizer

from sparkinfer.grammar.grammar_spec import GrammarSpec
from sparkinfer.grammar.matcher import GrammarError, Matcher
from sparkinfer.grammar.output_grammar import OutputGrammar
from sparkinfer.grammar.tokenizer_adapter import byte_tokenizer
from sparkinfer.request import JsonSchemaFormat, Tool, ToolPolicy
from sparkinfer.text.answer_grammar import answer_grammar
from sparkinfer.text.tool_protocols.protocol import ToolProtocol

QWEN, HERMES, MUSE = ToolProtocol.QWEN_XML, ToolProtocol.HERMES, ToolProtocol.MUSE
SPECIAL = {
    QWEN: ("<tool_call>", "</tool_call>", "<think>", "</think>"),
    HERMES: (),
    MUSE: ("<|start|>", "<|message|>", "<|eom|>"),
}
GET_TIME = {
    "type": "object",
    "properties": {
        "zone": {"type": "string"},
        "style": {"type": "string", "enum": ["short", "long"]},
        "digits": {"type": "integer", "minimum": 0, "maximum": 9},
        "box": {"type": "object", "properties": {"html": {"type": "string"}}, "additionalProperties": False},
        "code": {"type": "string", "pattern": "^[A-Z]{2}$"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["zone"],
    "additionalProperties": False,
}
TOOLS = (
    Tool(name="get_time", definition="{}", parameters=json.dumps(GET_TIME)),
    Tool(name="now", definition="{}", parameters='{"type": "object", "properties": {}}'),
)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "tags": {"type": "array", "items": {"enum": ["<", 1]}}},
    "required": ["name"],
    "additionalProperties": False,
}
PERSON_FORMAT = JsonSchemaFormat(schema=json.dumps(PERSON))


def spec(protocol: ToolProtocol = QWEN, **fields: Any) -> GrammarSpec:
    return GrammarSpec(special_tokens=SPECIAL[protocol], protocol=protocol, **({"tools": TOOLS} | fields))


class Model:
    """A vocabulary of bytes and the protocol's special tokens."""

    def __init__(self, protocol: ToolProtocol, grammar: OutputGrammar) -> None:
        self.special = SPECIAL[protocol]
        self.tokenizer: LLTokenizer = byte_tokenizer(self.special)
        self.matcher = Matcher.compile(grammar, self.tokenizer)

    def tokens(self, text: str) -> list[int]:
        tokens: list[int] = []
        while text:
            named = next((i for i, name in enumerate(self.special) if text.startswith(name)), None)
            if named is None:
                tokens += text[0].encode()
                text = text[1:]
            else:
                tokens.append(256 + named)
                text = text[len(self.special[named]):]
        return tokens

    def text(self, tokens: list[int]) -> str:
        pieces = [bytes([token]) if token < 256 else self.special[token - 256].encode() for token in tokens]
        return b"".join(pieces).decode()

    def admits(self, text: str) -> bool:
        try:
            for token in self.tokens(text):
                self.matcher.accept(token)
        except GrammarError:
            return False
        return self.matcher.is_accepting


def admits(text: str, protocol: ToolProtocol = QWEN, **fields: Any) -> bool:
    return Model(protocol, answer_grammar(spec(protocol, **fields))).admits(text)


def qwen(name: str, **arguments: str) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


CALL, NOW = qwen("get_time", zone="UTC"), qwen("now")
REQUIRED = ToolPolicy(choice="required")
NAMED = ToolPolicy(choice="required", allowed=("now",))
SINGLE = ToolPolicy(parallel=False)
NONE = ToolPolicy(choice="none")

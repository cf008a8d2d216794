"""Grammars of tool calls: what each protocol's reader takes, and nothing else. Knows notation; never a request.

A call is a rule without its opening tag, which whoever puts the answer together writes: where a model has no token for
the tag, it belongs to the text before it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sparkinfer.grammar.json_schema import json_rule
from sparkinfer.grammar.output_grammar import Rule, literal, marker
from sparkinfer.request import Tool
from sparkinfer.text.tool_protocols import hermes
from sparkinfer.text.tool_protocols.argument_rules import ArgumentRules
from sparkinfer.text.tool_protocols.markup import MUSE_TAGS, QWEN_TAGS, Tags
from sparkinfer.text.tool_protocols.protocol import ToolProtocol

Rules = dict[str, Rule | str]

_THINK = ("<think>", "</think>")
_CHATML = ("<|im_start|>", "<|im_end|>")
MARKUP: Mapping[str, tuple[str, ...]] = {
    "": _THINK,
    ToolProtocol.HERMES: (hermes.OPEN, hermes.CLOSE, *_THINK, *_CHATML),
    ToolProtocol.QWEN_XML: (
        QWEN_TAGS.open, QWEN_TAGS.head, QWEN_TAGS.key, QWEN_TAGS.end, QWEN_TAGS.foot, QWEN_TAGS.close,
        *_THINK, *_CHATML,
    ),
    ToolProtocol.MUSE: (
        MUSE_TAGS.open, MUSE_TAGS.head, MUSE_TAGS.key, MUSE_TAGS.end, MUSE_TAGS.foot, MUSE_TAGS.close,
        "<|start|>", "<|message|>", "<|eom|>", "<|eot|>",
    ),
}  # fmt: skip
"""What text of the model must not spell, by protocol: it would be read as structure, here or in the next turn."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """Where the functions come from and what the model's vocabulary has."""

    tools: tuple[tuple[int, Tool], ...]   # those that may be called, with their places in the request
    special_tokens: Collection[str]


def opening_tag(protocol: str) -> str:
    """The text that begins a call."""
    return MUSE_TAGS.open if protocol == ToolProtocol.MUSE else hermes.OPEN


def call_rules(protocol: str, site: CallSite) -> Rules:
    """Rules of which "call<i>" is a call to the function at place i, behind its opening tag, its closing tag included.

    Raises RequestError 400 for a schema that cannot be kept to.
    """
    rules: Rules = {}
    for index, tool in site.tools:
        if protocol == ToolProtocol.HERMES:
            rules |= _json_call(index, tool, site)
        else:
            tags = MUSE_TAGS if protocol == ToolProtocol.MUSE else QWEN_TAGS
            rules |= _markup_call(index, tool, tags, MARKUP[protocol], site)
    return rules


_PLAIN = frozenset({
    "type", "properties", "required", "additionalProperties", "title", "description", "$schema", "$id", "$comment",
    "$defs", "definitions", "default", "examples", "strict",
})  # what says nothing of names that `properties` lacks


def _json_call(index: int, tool: Tool, site: CallSite) -> Rules:
    schema = {"type": "object"} | json.loads(tool.parameters)
    head = f'\n{{"name": {json.dumps(tool.name)}, "arguments": '
    close = marker(hermes.CLOSE, site.special_tokens)
    return {
        f"call{index}": f'{literal(head)} args{index} {literal("}" + chr(10))} {close}',
        f"args{index}": json_rule(_with_named_arguments(schema), arguments_path(index), root=schema),
    }


def _with_named_arguments(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without arguments of other names, where these are plainly all; a schema of other names means them."""
    named, required = schema.get("properties"), schema.get("required", [])
    is_plain = schema.keys() <= _PLAIN and isinstance(named, dict) and isinstance(required, list)
    if not (is_plain and named and all(name in list(named) for name in required)):
        return schema  # malformed ones are refused by who reads them
    others = schema.get("additionalProperties", True)
    if others is not True and others != {}:
        return schema
    return {**schema, "additionalProperties": False}


def _markup_call(index: int, tool: Tool, tags: Tags, forbidden: Collection[str], site: CallSite) -> Rules:
    schema = {"type": "object"} | json.loads(tool.parameters)
    arguments = ArgumentRules(schema, arguments_path(index), tags, forbidden, f"t{index}_").rule()
    head = f"\n{tags.head}{tool.name}{tags.tail}\n"
    close = f"{literal(tags.foot + chr(10))} {marker(tags.close, site.special_tokens)}"
    return {f"call{index}": f"{literal(head)} args{index} {close}", f"args{index}": arguments}


def arguments_path(index: int) -> str:
    """Where the request has the schema of a function's arguments."""
    return f"tools[{index}].function.parameters"

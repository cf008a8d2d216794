"""Grammars of tool calls: what each protocol's reader takes, and nothing else. Knows notation; never a request.

A call is a rule without its opening tag, which whoever puts the answer together writes: where a model has no token for
the tag, it belongs to the text before it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sparkinfer.grammar.json_schema import json_rule, raw_string_rule
from sparkinfer.grammar.output_grammar import Rule, literal, marker, regex_escaped
from sparkinfer.request import Tool
from sparkinfer.text.tool_protocols import hermes
from sparkinfer.text.tool_protocols.argument_forms import ArgumentForm, argument_forms, value_parts
from sparkinfer.text.tool_protocols.markup import MUSE_TAGS, QWEN_TAGS, Tags
from sparkinfer.text.tool_protocols.protocol import ToolProtocol

Rules = dict[str, Rule | str]

_EXTRA_NAME = "[A-Za-z0-9_.:\\-]{1,64}"
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
            rules |= _MarkupCall(index, tool, tags, MARKUP[protocol]).rules(site)
    return rules


def _json_call(index: int, tool: Tool, site: CallSite) -> Rules:
    schema = {"type": "object"} | json.loads(tool.parameters)
    head = f'\n{{"name": {json.dumps(tool.name)}, "arguments": '
    close = marker(hermes.CLOSE, site.special_tokens)
    return {
        f"call{index}": f'{literal(head)} args{index} {literal("}" + chr(10))} {close}',
        f"args{index}": json_rule(schema, _path(index), root=schema),
    }


class _MarkupCall:
    """The rules of one function's calls."""

    def __init__(self, index: int, tool: Tool, tags: Tags, forbidden: tuple[str, ...]) -> None:
        self._index = index
        self._tool = tool
        self._tags = tags
        self._forbidden = forbidden
        self._schema: Mapping[str, Any] = {"type": "object"} | json.loads(tool.parameters)
        self._path = _path(index)
        self._rules: Rules = {}

    def rules(self, site: CallSite) -> Rules:
        json_rule(self._schema, self._path, root=self._schema)  # refuses what is not supported, wherever it stands
        tags, found = self._tags, argument_forms(self._schema)
        head = f"\n{tags.head}{self._tool.name}{tags.tail}\n"
        close = f'{literal(tags.foot + chr(10))} {marker(tags.close, site.special_tokens)}'
        forms = [self._form(number, form) for number, form in enumerate(found.forms)]
        approximations = tuple(f"{self._path}: {key}" for key in sorted(found.unread))
        self._rules[f"call{self._index}"] = Rule(
            f"{literal(head)} args{self._index} {close}", approximations=approximations
        )
        self._rules[f"args{self._index}"] = " | ".join(forms)
        return self._rules

    def _form(self, number: int, form: ArgumentForm) -> str:
        """A rule for one way to call the function; returns its name."""
        name = f"form{self._index}x{number}"
        properties = dict(form.properties)
        properties |= {key: form.additional for key in sorted(form.required) if key not in properties}
        parts = []
        for place, (key, schema) in enumerate(properties.items()):
            if schema is False:
                continue
            rule = f"arg{self._index}x{number}x{place}"
            self._argument(rule, literal(key), schema, f"{self._path}.properties.{key}")
            parts.append(rule if key in form.required else f"{rule}?")
        if self._takes_more(form, bool(properties)):
            rule = f"extra{self._index}x{number}"
            known = "|".join(regex_escaped(key) for key in properties)
            key_name = f"EXTRANAME{self._index}X{number}"
            self._rules[key_name] = f"/{_EXTRA_NAME}/" + (f" & ~/({known})/" if known else "")
            self._argument(rule, key_name, form.additional, f"{self._path}.additionalProperties")
            self._rules[name + "more"] = Rule(f"{rule}*", approximations=(f"{self._path}: additionalProperties",))
            parts.append(name + "more")
        self._rules[name] = " ".join(parts) or '""'
        return name

    def _takes_more(self, form: ArgumentForm, has_properties: bool) -> bool:
        """Whether further arguments are meant: a schema of theirs says so, or there are no others."""
        if isinstance(form.additional, Mapping) and form.additional:
            return True
        return not has_properties and self._schema.get("additionalProperties") in (True, {})

    def _argument(self, rule: str, key: str, schema: Any, path: str) -> None:
        """Rules for one argument: its tag, its value, its end."""
        tags = self._tags
        head, tail = (literal(tags.key), literal(tags.tail + tags.value_lead))
        end = literal(tags.value_lead + tags.end + "\n")
        parts = value_parts(schema, self._schema)
        values = []
        for number, part in enumerate(parts.strings):
            text = raw_string_rule(part, path, self._forbidden, root=self._schema)
            assert text is not None, f"{part} admits strings alone"
            terminal = f"{rule.upper()}S{number}"
            self._rules[terminal] = Rule(f"({text.text}) {end}", text.helpers, text.approximations)
            values.append(terminal)
        for number, part in enumerate(parts.others):
            value = f"{rule}v{number}"
            self._rules[value] = json_rule(part, path, root=self._schema)
            values.append(f"{value} {end}")
        approximations = () if parts.is_exact else (f"{path}: a mixture of strings and other values",)
        self._rules[rule] = Rule(f"{head} {key} {tail} ({' | '.join(values)})", approximations=approximations)


def _path(index: int) -> str:
    return f"tools[{index}].function.parameters"

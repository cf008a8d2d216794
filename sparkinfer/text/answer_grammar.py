"""The grammar of a whole answer: reasoning first, then what the request asks for. Knows wishes; never tokens.

    answer  = [ reasoning ] ( content | [ content ] calls )          functions may be called
            | [ reasoning ] ( formatted | calls )                    and content has a form
            | [ reasoning ] calls                                    and one must be
            | [ reasoning ] ( content | formatted )                  none may be

Runs where it may take long: a client's schema can be as large and as twisted as it likes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

from sparkinfer.errors import RequestError
from sparkinfer.grammar.client_grammar import lark_rule, regex_rule
from sparkinfer.grammar.grammar_spec import GrammarSpec
from sparkinfer.grammar.json_schema import json_object_rule, json_rule
from sparkinfer.grammar.output_grammar import (
    PROBE,
    FreeText,
    OutputGrammar,
    Rule,
    assemble,
    choice_rule,
    literal,
    marker,
    text_without,
)
from sparkinfer.request import (
    ChoiceFormat,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    OutputFormat,
    RegexFormat,
)
from sparkinfer.text.tool_protocols.call_grammar import MARKUP, CallSite, Rules, arguments_path, call_rules, opening_tag
from sparkinfer.text.tool_protocols.protocol import ToolProtocol

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

_PROBE_ESCAPE = json.dumps(PROBE)[2:-1]  # how a literal has it

OnBegun = Callable[[str], None]


def answer_grammar(spec: GrammarSpec, on_begun: OnBegun = lambda path: None) -> OutputGrammar:
    """What an answer to a request of `spec` may be. Raises RequestError 400 naming the field that is to blame.

    on_begun: told the path of each part of the request before it is worked out, which may take long
    """
    rules: Rules = {"start": ""}
    calls = _calls(spec, rules, on_begun)
    answer = _answer(spec, rules, on_begun)
    if spec.protocol == ToolProtocol.MUSE:
        rules["start"] = _segments(spec, answer, calls)
    else:
        rules["start"] = _reasoning(spec) + _body(spec, rules, answer, calls)
    text = text_without(MARKUP[spec.protocol])
    grammar = assemble(rules | {"TEXT": text, "REASONING": text, "SEPARATOR": r"/\n{1,2}/"})
    return dataclasses.replace(grammar, free_text=_free_text(spec, rules, grammar.lark))


def _free_text(spec: GrammarSpec, rules: Rules, lark: str) -> FreeText | None:
    if isinstance(spec.output_format, RegexFormat | GrammarFormat) or _PROBE_ESCAPE in lark:
        return None
    ends = (rule.text_end for rule in rules.values() if isinstance(rule, Rule))
    return FreeText(MARKUP[spec.protocol], max(ends, default=""))


def _calls(spec: GrammarSpec, rules: Rules, on_begun: OnBegun) -> list[tuple[int, str]]:
    """Rules for the calls that may be made; place and name of each function."""
    if spec.policy.choice == "none":
        return []
    allowed = spec.policy.allowed
    tools = tuple((i, tool) for i, tool in enumerate(spec.tools) if not allowed or tool.name in allowed)
    for i, tool in tools:
        on_begun(arguments_path(i))
        rules |= call_rules(spec.protocol, CallSite(((i, tool),), spec.special_tokens))
    return [(i, tool.name) for i, tool in tools]


def _answer(spec: GrammarSpec, rules: Rules, on_begun: OnBegun) -> str:
    """What stands in the place of content; "" where a function must be called."""
    if spec.tools and spec.policy.choice == "required":
        return ""
    if spec.output_format is None:
        return "TEXT"
    on_begun("response_format")
    rules["formatted"] = format_rule(spec.output_format, _kept_out(spec))
    return "formatted"


def _reasoning(spec: GrammarSpec) -> str:
    """The section that comes before an answer, "" without one."""
    if not (spec.starts_in_reasoning or spec.can_reason):
        return ""
    section = f"REASONING {marker(THINK_CLOSE, spec.special_tokens)} /\\n{{0,2}}/"
    return f"{section} " if spec.starts_in_reasoning else f"({marker(THINK_OPEN, spec.special_tokens)} {section})? "


def _body(spec: GrammarSpec, rules: Rules, answer: str, calls: list[tuple[int, str]]) -> str:
    """Everything behind the reasoning. A tag that the model has no token for ends the text before it."""
    if not calls:
        return f"({answer})"
    opening = opening_tag(spec.protocol)
    tag = marker(opening, spec.special_tokens)
    is_token = opening in spec.special_tokens
    rules["call"] = " | ".join(f"call{i}" for i, _ in calls)
    rules["calls"] = f"call (SEPARATOR {tag} call)* SEPARATOR?" if spec.policy.parallel else "call SEPARATOR?"
    if answer != "TEXT":
        return f"({answer} | {tag} calls)" if answer else f"({tag} calls)"
    if is_token:
        return f"(TEXT | TEXT {tag} calls)"
    rules["LEAD"] = f"TEXT {literal(opening)}"
    return "(TEXT | LEAD calls)"


def _segments(spec: GrammarSpec, answer: str, calls: list[tuple[int, str]]) -> str:
    """Muse Glimmer's: each part is addressed to somebody. The prompt has opened the first segment."""
    start, message, end = (marker(text, spec.special_tokens) for text in ("<|start|>", "<|message|>", "<|eom|>"))
    turn = f'{end} {start} "assistant"'
    parts = [f'" to=user" {message} {answer}'] if answer else []
    if calls:
        tag = literal(opening_tag(spec.protocol))
        segments = " | ".join(f"{literal(f' to={name}')} {message} {tag} call{i}" for i, name in calls)
        parts.append(f"({segments}) ({turn} ({segments}))*" if spec.policy.parallel else f"({segments})")
    return f'(" to=self" {message} REASONING {turn})? ({" | ".join(parts)})'


def _kept_out(spec: GrammarSpec) -> tuple[str, ...]:
    """What content must not spell whatever its form, because the answer's reader would take it for something else."""
    return MARKUP[spec.protocol] if spec.protocol or spec.can_reason or spec.starts_in_reasoning else ()


def format_rule(output_format: OutputFormat, kept_out: tuple[str, ...] = ()) -> Rule:
    """The form that the client wants content to have; text without any of `kept_out`, but for strings in JSON.

    Raises RequestError 400.
    """
    match output_format:
        case JsonObjectFormat():
            return json_object_rule()
        case JsonSchemaFormat():
            return json_rule(json.loads(output_format.schema), "response_format.json_schema.schema")
        case ChoiceFormat():
            return choice_rule(output_format.choices, "choice", kept_out)
        case RegexFormat():
            return regex_rule(output_format.pattern, "regex", kept_out)
        case GrammarFormat():
            return lark_rule(output_format.grammar, "grammar", kept_out)
    raise RequestError(400, "this form of output is not supported", param="response_format")

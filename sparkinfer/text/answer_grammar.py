"""The grammar of a whole answer: reasoning first, then what the request asks for. Knows wishes; never tokens.

Runs where it may take long: a client's schema can be as large and as twisted as it likes.
"""

from __future__ import annotations

import json

from llguidance.gbnf_to_lark import any_to_lark

from sparkinfer.errors import RequestError
from sparkinfer.grammar.grammar_spec import GrammarSpec
from sparkinfer.grammar.json_schema import json_object_rule, json_rule
from sparkinfer.grammar.output_grammar import OutputGrammar, Rule, assemble, choice_rule, marker, text_without
from sparkinfer.request import (
    ChoiceFormat,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    OutputFormat,
    RegexFormat,
)

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


def answer_grammar(spec: GrammarSpec) -> OutputGrammar:
    """What an answer to a request of `spec` may be. Raises RequestError 400 naming the field that is to blame."""
    assert spec.output_format is not None
    rules: dict[str, Rule | str] = {"start": reasoning(spec) + "answer", "answer": format_rule(spec.output_format)}
    if spec.starts_in_reasoning:
        rules["REASONING"] = text_without([THINK_OPEN, THINK_CLOSE])
    return assemble(rules)


def reasoning(spec: GrammarSpec) -> str:
    """The section that comes before an answer, "" without one; it needs a terminal REASONING."""
    if not spec.starts_in_reasoning:
        return ""
    return f'REASONING {marker(THINK_CLOSE, spec.special_tokens)} /\\n{{0,2}}/ '


def format_rule(output_format: OutputFormat) -> Rule:
    """The form that the client wants content to have."""
    match output_format:
        case JsonObjectFormat():
            return json_object_rule()
        case JsonSchemaFormat():
            return json_rule(json.loads(output_format.schema), "response_format.json_schema.schema")
        case ChoiceFormat():
            return choice_rule(output_format.choices, "choice")
        case RegexFormat():
            return Rule("/" + output_format.pattern.replace("/", "\\/") + "/")
        case GrammarFormat():
            return Rule("%lark " + any_to_lark(output_format.grammar))
    raise RequestError(400, "this form of output is not supported", param="response_format")

"""What grammars are measured with: forms of answers, and an answer of each form. Measures nothing."""

from __future__ import annotations

import json

from sparkinfer.grammar.grammar_spec import GrammarSpec
from sparkinfer.request import JsonObjectFormat, JsonSchemaFormat, Tool, ToolPolicy

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 80},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
        "address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
                    "required": ["city"], "additionalProperties": False},
        "level": {"enum": ["low", "middle", "high"]},
    },
    "required": ["name", "age", "tags", "address", "level"],
    "additionalProperties": False,
}  # fmt: skip
PERSON_TEXT = json.dumps({
    "name": "Ann-Kathrin O'Neill", "age": 42, "email": "ann@example.com", "tags": ["likes <b>HTML</b>", "x < 3", "ok"],
    "address": {"street": "12 Long Street, back yard", "city": "Upper Town"}, "level": "middle",
})  # fmt: skip
OBJECT_TEXT = json.dumps(
    {"a": [1, 2.5, None, True], "text": "Some words, a <tag> and 12 numbers.", "n": {"m": {}}}, indent=2
)
CALL_TEXT = (
    "\n<function=save_person>\n<parameter=name>\nAnn-Kathrin & <b>Bob</b>\n</parameter>\n"
    "<parameter=age>\n42\n</parameter>\n"
    '<parameter=tags>\n["a", "x < 3"]\n</parameter>\n<parameter=address>\n{"city": "Upper Town"}\n</parameter>\n'
    "<parameter=level>\nlow\n</parameter>\n</function>\n"
)
HTML = '<div class="a">\n  <p>Hello, <b>world</b> & co. x < 3</p>\n  <pre>def f(a, b):\n    return a</pre>\n</div>'
HTML_CALL_TEXT = (
    f"\n<function=save_page>\n<parameter=page>\n{HTML}\n</parameter>\n<parameter=note>\n{HTML}\n</parameter>\n"
    f"<parameter=teaser>\n{HTML}\n</parameter>\n</function>\n"
)
PAGE = {
    "type": "object",
    "properties": {
        "page": {"type": "string"},
        "note": {"anyOf": [{"type": "string", "maxLength": 5000}, {"type": "null"}]},
        "teaser": {"type": "string", "minLength": 10, "maxLength": len(HTML)},
    },
    "required": ["page", "note", "teaser"],
    "additionalProperties": False,
}  # fmt: skip
THOUGHT = "The user wants a person. If x < 3 then <b>bold</b>; otherwise nothing.\nLet me think about it once more."


def cases(special: tuple[str, ...]) -> dict[str, tuple[GrammarSpec, list[str]]]:
    """Name -> what is asked for, and an answer as runs of text and special tokens."""
    schema = JsonSchemaFormat(schema=json.dumps(PERSON))
    tools = (Tool(name="save_person", definition="{}", parameters=json.dumps(PERSON)),)
    call = {"special_tokens": special, "protocol": "qwen_xml", "tools": tools, "policy": ToolPolicy(choice="required")}
    page = (Tool(name="save_page", definition="{}", parameters=json.dumps(PAGE)),)
    return {
        "JSON object": (GrammarSpec(special_tokens=special, output_format=JsonObjectFormat()), [OBJECT_TEXT]),
        "JSON schema": (GrammarSpec(special_tokens=special, output_format=schema), [PERSON_TEXT]),
        "XML call": (GrammarSpec(**call), ["<tool_call>", CALL_TEXT, "</tool_call>"]),
        "XML call, HTML": (GrammarSpec(**call | {"tools": page}), ["<tool_call>", HTML_CALL_TEXT, "</tool_call>"]),
        "thought, call": (
            GrammarSpec(**call, can_reason=True, starts_in_reasoning=True),
            [THOUGHT, "</think>", "\n\n", "<tool_call>", CALL_TEXT, "</tool_call>"],
        ),
    }

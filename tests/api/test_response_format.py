"""Forms of an answer in all their spellings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkinfer.request import (
    ChoiceFormat,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    OutputFormat,
    RegexFormat,
)
from tests.api.parsing import chat, completion, refused

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "number", "maximum": 10**30}}}
TEXT = json.dumps(SCHEMA)
BOX = {"name": "box", "schema": SCHEMA}


def response_format(**fields: Any) -> dict[str, Any]:
    return {"response_format": fields}


FORMATS: list[tuple[dict[str, Any], OutputFormat | None]] = [
    ({}, None),
    (response_format(type="text"), None),
    ({"response_format": None, "structured_outputs": None, "guided_json": None}, None),
    (response_format(type="json_object"), JsonObjectFormat()),
    (response_format(type="json_schema", json_schema=BOX), JsonSchemaFormat(schema=TEXT, name="box")),
    (
        response_format(type="json_schema", json_schema=BOX | {"strict": True, "description": "A box <b>"}),
        JsonSchemaFormat(schema=TEXT, name="box", strict=True),
    ),
    (response_format(type="regex", regex="[0-9]+"), RegexFormat("[0-9]+")),
    (response_format(type="grammar", grammar="start: \"a\""), GrammarFormat("start: \"a\"")),
    (response_format(type="choice", choice=["yes", "no"]), ChoiceFormat(("yes", "no"))),
    ({"structured_outputs": {"json": SCHEMA}}, JsonSchemaFormat(schema=TEXT)),
    ({"structured_outputs": {"json": TEXT}}, JsonSchemaFormat(schema=TEXT)),
    ({"structured_outputs": {"json_object": True}}, JsonObjectFormat()),
    ({"structured_outputs": {"regex": "a", "choice": None}}, RegexFormat("a")),
    ({"guided_json": SCHEMA}, JsonSchemaFormat(schema=TEXT)),
    ({"guided_json": TEXT}, JsonSchemaFormat(schema=TEXT)),
    ({"guided_json_object": False}, None),
    ({"guided_regex": "a|b"}, RegexFormat("a|b")),
    ({"guided_grammar": "start: \"a\""}, GrammarFormat("start: \"a\"")),
    ({"guided_choice": ["a"]}, ChoiceFormat(("a",))),
]


@pytest.mark.parametrize(("fields", "expected"), FORMATS)
def test_format(fields: dict[str, Any], expected: OutputFormat | None) -> None:
    assert chat(fields).requests[0].output_format == expected
    assert completion(fields).requests[0].output_format == expected


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": "json"}, "response_format"),
    (response_format(), "response_format.type"),
    (response_format(type="bogus"), "response_format.type"),
    (response_format(type="json_object", json_schema=BOX), "response_format.json_schema"),
    (response_format(type="json_schema"), "response_format.json_schema"),
    (response_format(type="json_schema", json_schema={"schema": SCHEMA}), "response_format.json_schema.name"),
    (response_format(type="json_schema", json_schema={"name": "", "schema": {}}), "response_format.json_schema.name"),
    (response_format(type="json_schema", json_schema={"name": "a"}), "response_format.json_schema.schema"),
    (response_format(type="json_schema", json_schema=BOX | {"schema": []}), "response_format.json_schema.schema"),
    (response_format(type="json_schema", json_schema=BOX | {"strict": 1}), "response_format.json_schema.strict"),
    (response_format(type="json_schema", json_schema=BOX | {"x": 1}), "response_format.json_schema.x"),
    (response_format(type="json_schema", json_schema=BOX, x=1), "response_format.x"),
    (response_format(type="regex"), "response_format.regex"),
    (response_format(type="choice", choice=[]), "response_format.choice"),
    ({"guided_choice": ["a", ""]}, "guided_choice[1]"),
    ({"guided_choice": "a"}, "guided_choice"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "[]"}, "guided_json"),
    ({"guided_json": 7}, "guided_json"),
    ({"guided_json": '{"a": 1, "a": 2}'}, "guided_json"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
    ({"guided_regex": "a", **response_format(type="json_object")}, "guided_regex"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    for parse in (chat, completion):
        error = refused(parse, fields)
        assert error.param == param
        assert param in error.message

"""The form an answer must have: OpenAI's response_format, and vLLM's spellings of more, to an OutputFormat.

Whether a schema, a pattern or a grammar can be kept to is found out where it is compiled.
"""

from __future__ import annotations

import json
from typing import Any

from sparkinfer.api.json_body import parse_json
from sparkinfer.api.schema import (
    Object,
    as_list,
    as_object,
    as_str,
    fail,
    join,
    read_bool,
    read_choice,
    read_object,
    read_str,
    reject_unknown,
    type_name,
)
from sparkinfer.request import (
    ChoiceFormat,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    OutputFormat,
    RegexFormat,
)

FORMAT_TYPES = ("text", "json_object", "json_schema", "regex", "grammar", "choice")
GUIDED_KEYS = ("json", "json_object", "regex", "grammar", "choice")
SCHEMA_KEYS = ("name", "schema", "strict", "description")
MAX_CHOICES = 1024

_NONE_GIVEN = "must have one of json, json_object, regex, grammar, choice"


def read_output_format(body: Object) -> OutputFormat | None:
    """response_format, structured_outputs or one of guided_*, no two of them; None when the answer is free text."""
    found = {
        "response_format": _read_response_format(body),
        "structured_outputs": _read_structured_outputs(body),
        **{f"guided_{kind}": _read_guided(body, kind, f"guided_{kind}") for kind in GUIDED_KEYS},
    }
    given = {key: value for key, value in found.items() if value is not None}
    if len(given) > 1:
        first, second, *_ = given
        fail(second, f"must not be given beside {first}")
    return next(iter(given.values()), None)


def json_schema_format(fields: Object, path: str) -> JsonSchemaFormat:
    """{name, schema, strict, description} at `path`; name and schema are required."""
    reject_unknown(fields, SCHEMA_KEYS, path)
    name = read_str(fields, "name", path)
    if not name:
        fail(join(path, "name"), "is required")
    schema = as_object(fields.get("schema"), join(path, "schema"))
    read_str(fields, "description", path)
    return JsonSchemaFormat(schema=_json(schema), name=name, strict=read_bool(fields, "strict", False, path))


def _read_response_format(body: Object) -> OutputFormat | None:
    path = "response_format"
    value = read_object(body, path)
    if value is None:
        return None
    kind = read_choice(value, "type", FORMAT_TYPES, path)
    if kind is None:
        fail(join(path, "type"), "is required")
    reject_unknown(value, ("type",) if kind in ("text", "json_object") else ("type", kind), path)
    match kind:
        case "text":
            return None
        case "json_object":
            return JsonObjectFormat()
        case "json_schema":
            where = join(path, kind)
            return json_schema_format(as_object(value.get(kind), where), where)
    found = _read_guided(value, kind, join(path, kind), kind)
    if found is None:
        fail(join(path, kind), "is required")
    return found


def _read_structured_outputs(body: Object) -> OutputFormat | None:
    path = "structured_outputs"
    value = read_object(body, path)
    if value is None:
        return None
    reject_unknown(value, GUIDED_KEYS, path)
    found = [_read_guided(value, kind, join(path, kind), kind) for kind in GUIDED_KEYS]
    formats = [item for item in found if item is not None]
    if len(formats) != 1:
        fail(path, _NONE_GIVEN if not formats else f"{_NONE_GIVEN} and no more")
    return formats[0]


def _read_guided(obj: Object, kind: str, path: str, key: str = "") -> OutputFormat | None:
    """One constraint of `obj`, spelled as vLLM does; `key` is its own name there unless it is guided_<kind>."""
    value = obj.get(key or f"guided_{kind}")
    if value is None:
        return None
    match kind:
        case "json":
            return JsonSchemaFormat(schema=_json(_schema(value, path)))
        case "json_object":
            return JsonObjectFormat() if read_bool({kind: value}, kind, False) else None
        case "regex":
            return RegexFormat(_text(value, path))
        case "grammar":
            return GrammarFormat(_text(value, path))
    choices = as_list(value, path)
    if not 0 < len(choices) <= MAX_CHOICES:
        fail(path, f"must have 1 to {MAX_CHOICES} texts, got {len(choices)}")
    return ChoiceFormat(tuple(_text(choice, f"{path}[{i}]") for i, choice in enumerate(choices)))


def _schema(value: Any, path: str) -> Object:
    """A JSON schema, or the text of one."""
    if isinstance(value, str):
        value = parse_json(value, path, param=path)
    if not isinstance(value, dict):
        fail(path, f"must be a JSON schema, an object or its text, not {type_name(value)}")
    return value


def _text(value: Any, path: str) -> str:
    text = as_str(value, path)
    if not text:
        fail(path, "must not be empty")
    return text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

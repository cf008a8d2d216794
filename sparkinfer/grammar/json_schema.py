"""JSON Schema as rules of a grammar. Knows schemas; never models, tools or requests."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from sparkinfer.grammar.expansion import Expansion
from sparkinfer.grammar.json_rules import JsonRules
from sparkinfer.grammar.output_grammar import Rule
from sparkinfer.grammar.schema_document import SchemaDocument, fail
from sparkinfer.grammar.terminals import SHARED


def json_rule(schema: Any, path: str, root: Any = None) -> Rule:
    """JSON text of a value that follows `schema`.

    path:  where the client sent it, for messages: "tools[0].function.parameters"
    root:  what "#/..." in a $ref points into; the schema itself when None
    Raises RequestError 400 "path: ..." for what is not supported, contradicts itself or is too complex.
    """
    expansion = Expansion(SchemaDocument(schema, path, root))
    rules = JsonRules(expansion, _prefix(schema, path))
    try:
        rule = rules.rule((expansion.part(schema, path),), path)
    except RecursionError:
        fail(path, "is nested too deeply")
    return dataclasses.replace(rule, helpers={**SHARED, **rule.helpers})


def json_object_rule() -> Rule:
    """JSON text of any object."""
    return json_rule({"type": "object"}, "response_format")


def _prefix(schema: Any, path: str) -> str:
    """Of the names of rules: another one for each schema of a grammar."""
    text = f"{path} {json.dumps(schema, sort_keys=True)}"
    return f"j{hashlib.blake2s(text.encode('utf-8', 'replace'), digest_size=5).hexdigest()}_"

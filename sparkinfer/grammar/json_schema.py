"""JSON Schema as rules of a grammar. Knows schemas; never models, tools or requests."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection
from typing import Any

from sparkinfer.grammar.expansion import Expansion
from sparkinfer.grammar.json_rules import JsonRules
from sparkinfer.grammar.output_grammar import Rule, literal, markup_free
from sparkinfer.grammar.pattern import PatternError
from sparkinfer.grammar.schema_document import SchemaDocument, fail
from sparkinfer.grammar.shapes import LiteralShape, StringShape
from sparkinfer.grammar.terminals import SHARED, raw_string
from sparkinfer.grammar.trial import is_satisfiable


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


def raw_string_rule(schema: Any, path: str, forbidden: Collection[str], root: Any = None) -> Rule | None:
    """Text of a string that follows `schema`, without quotes; None when the schema allows other types than strings.

    forbidden: markers that begin with "<" and may not be in the text. Raises RequestError 400 as json_rule does.
    """
    document = SchemaDocument(schema, path, root)
    expansion = Expansion(document)
    shapes = expansion.shapes((expansion.part(schema, path),))
    texts: list[str] = []
    for shape in shapes:
        if isinstance(shape, LiteralShape) and all(isinstance(value, str) for value in shape.values):
            texts += [literal(value) for value in shape.values if not any(text in value for text in forbidden)]
        elif isinstance(shape, StringShape):
            try:
                text = raw_string(shape, [markup_free("[^<", forbidden)], rivals=None)
                texts += [f"({text})"] if is_satisfiable(text) else []
            except PatternError as error:
                fail(shape.blamed or path, str(error))
        else:
            return None
    if not texts:
        fail(path, "no text satisfies it that has none of the protocol's own markers in it")
    name = f"{_prefix(schema, path)}raw".upper()
    return Rule(name, {name: " | ".join(texts)}, tuple(expansion.approximations))


def _prefix(schema: Any, path: str) -> str:
    """Of the names of rules: another one for each schema of a grammar."""
    text = f"{path} {json.dumps(schema, sort_keys=True)}"
    return f"j{hashlib.blake2s(text.encode('utf-8', 'replace'), digest_size=5).hexdigest()}_"

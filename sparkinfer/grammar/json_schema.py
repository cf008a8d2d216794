"""JSON Schema as rules of a grammar. Knows schemas; never models, tools or requests."""

from __future__ import annotations

import json
from typing import Any

from sparkinfer.grammar.output_grammar import Rule


def json_rule(schema: Any, path: str, root: Any = None) -> Rule:
    """JSON text of a value that follows `schema`.

    path:  where the client sent it, for messages: "tools[0].function.parameters"
    root:  what "#/..." in a $ref points into; the schema itself when None
    Raises RequestError 400 "path: keyword ..." for what is not supported.
    """
    return Rule("%json " + json.dumps(schema))


def json_object_rule() -> Rule:
    """JSON text of any object."""
    return json_rule({"type": "object"}, "")

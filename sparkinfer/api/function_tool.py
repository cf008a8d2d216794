"""One function that a model may call, out of the parts in which every API spells it.

Knows no API: paths in errors are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkinfer.api.schema import Object, fail
from sparkinfer.api.tools import MAX_TOOLS, make_tool
from sparkinfer.request import Tool


def function_tool(name: str, description: str, parameters: Object | None, path: str, *, strict: bool = False) -> Tool:
    """The tool, defined to the model in OpenAI's form.

    parameters: JSON schema of the arguments, an object's; None: it takes any. path: of what the client calls a tool
    """
    schema = {"type": "object", "properties": {}} if parameters is None else parameters
    function = {"name": name, "description": description or None, "parameters": schema, "strict": strict or None}
    return make_tool(function, path)


def check_unique(tools: Sequence[Tool], path: str) -> tuple[Tool, ...]:
    """The tools; no two may share a name, and there may be at most MAX_TOOLS."""
    if len(tools) > MAX_TOOLS:
        fail(path, f"must have at most {MAX_TOOLS} tools, got {len(tools)}")
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            fail(path, f"there are two tools named {tool.name!r}")
        seen.add(tool.name)
    return tuple(tools)

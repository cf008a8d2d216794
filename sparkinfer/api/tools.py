"""Tools a client offers and what it says about calling them: OpenAI's fields to Tool records and a ToolPolicy.

Every structural rule is checked here and every error located; what the JSON schemas mean is the grammar's business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from sparkinfer.api.schema import (
    Object,
    as_object,
    as_str,
    fail,
    join,
    read_bool,
    read_choice,
    read_list,
    read_object,
    read_str,
    reject_unknown,
    type_name,
)
from sparkinfer.request import Message, Tool, ToolPolicy

MAX_TOOLS = 1024
MAX_NAME_CHARACTERS = 128
CHOICES = ("none", "auto", "required")
FUNCTION_KEYS = ("name", "description", "parameters", "strict")

NAME_PATTERN = "[A-Za-z0-9_.:-]+"
_NAME = re.compile(NAME_PATTERN)
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def parse_tools(body: Object) -> tuple[Tool, ...]:
    """`tools` of a body, functions all of them. A function without `parameters` takes none."""
    items = read_list(body, "tools") or []
    if len(items) > MAX_TOOLS:
        fail("tools", f"must have at most {MAX_TOOLS} tools, got {len(items)}")
    tools = tuple(_parse_tool(item, f"tools[{i}]") for i, item in enumerate(items))
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        if tool.name in seen:
            fail(f"tools[{i}].function.name", f"there are two tools named {tool.name!r}")
        seen.add(tool.name)
    return tools


def make_tool(function: Object, path: str) -> Tool:
    """A Tool from {name, description, parameters, strict}, the function at `path`; nulls count as absent."""
    function = {key: value for key, value in function.items() if value is not None}
    reject_unknown(function, FUNCTION_KEYS, path)
    name = read_name(function, path)
    read_str(function, "description", path)
    parameters = _read_parameters(function, join(path, "parameters"))
    return Tool(
        name=name,
        definition=_json({"type": "function", "function": function}),
        parameters=_json(parameters),
        strict=read_bool(function, "strict", False, path),
    )


def read_name(function: Object, path: str) -> str:
    """`name` of a function: letters, digits and _ . : - alone, so that no protocol can misread it."""
    where = join(path, "name")
    name = as_str(function.get("name"), where)
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS:
        fail(where, f"must be 1 to {MAX_NAME_CHARACTERS} of letters, digits and _ . : -, got {name[:64]!r}")
    return name


def read_tool_policy(body: Object, tools: Sequence[Tool]) -> ToolPolicy:
    """tool_choice (a word, one function, or a set of allowed ones) and parallel_tool_calls.

    Both are checked whether there are tools or not; what must be called has to be there.
    """
    choice, allowed = _read_tool_choice(body.get("tool_choice"))
    parallel = read_bool(body, "parallel_tool_calls", True)
    if not tools:
        if choice == "required":
            fail("tool_choice", "no tools are given that could be called")
        return ToolPolicy()
    offered = {tool.name for tool in tools}
    for name, path in allowed.items():
        if name not in offered:
            fail(path, f"no tool is named {name[:64]!r}")
    return ToolPolicy(choice=choice, allowed=tuple(allowed), parallel=parallel)


def check_called_tools(messages: Sequence[Message], tools: Sequence[Tool], path: str = "messages") -> None:
    """Calls of earlier turns are to tools that are offered now; without any, nothing can be said about them."""
    offered = {tool.name for tool in tools}
    if not offered:
        return
    for i, message in enumerate(messages):
        for k, call in enumerate(message.tool_calls):
            if call.name not in offered:
                fail(f"{path}[{i}].tool_calls[{k}].function.name", f"no tool is named {call.name[:64]!r}")


def _parse_tool(value: Any, path: str) -> Tool:
    tool = as_object(value, path)
    kind = read_str(tool, "type", path)
    if kind != "function":
        got = "" if kind is None else f", got {kind[:64]!r}"
        fail(join(path, "type"), f"must be 'function'{got}")
    reject_unknown(tool, ("type", "function"), path)
    where = join(path, "function")
    return make_tool(as_object(tool.get("function"), where), where)


def _read_parameters(function: Object, path: str) -> Object:
    parameters = function.get("parameters")
    if parameters is None:
        return _NO_PARAMETERS
    schema = as_object(parameters, path)
    if schema.get("type", "object") != "object":
        fail(join(path, "type"), "must be 'object': arguments go by name")
    read_object(schema, "properties", path)
    return schema


def _read_tool_choice(value: Any) -> tuple[Literal["auto", "none", "required"], dict[str, str]]:
    """What is to be done, and the functions it is limited to with the path of each."""
    path = "tool_choice"
    if value is None:
        return "auto", {}
    if isinstance(value, str):
        if value not in CHOICES:
            fail(path, f"must be one of {', '.join(CHOICES)}, or name a function, got {value[:64]!r}")
        return _word(value), {}
    if not isinstance(value, dict):
        fail(path, f"must be a string or an object, not {type_name(value)}")
    kind = read_choice(value, "type", ("function", "allowed_tools"), path)
    if kind == "allowed_tools":
        return _read_allowed_tools(value, path)
    if kind is None:
        fail(join(path, "type"), "is required")
    return "required", _read_function_name(value, path)


def _read_allowed_tools(value: Object, path: str) -> tuple[Literal["auto", "none", "required"], dict[str, str]]:
    reject_unknown(value, ("type", "allowed_tools"), path)
    path = join(path, "allowed_tools")
    allowed = as_object(value.get("allowed_tools"), path)
    reject_unknown(allowed, ("mode", "tools"), path)
    mode = read_choice(allowed, "mode", ("auto", "required"), path)
    items = read_list(allowed, "tools", path)
    if mode is None or not items:
        fail(path, "needs a mode and at least one tool")
    names: dict[str, str] = {}
    for i, item in enumerate(items):
        where = f"{path}.tools[{i}]"
        tool = as_object(item, where)
        if tool.get("type") != "function":
            fail(join(where, "type"), "must be 'function'")
        names |= _read_function_name(tool, where)
    return _word(mode), names


def _read_function_name(value: Object, path: str) -> dict[str, str]:
    """The name in {type, function: {name}}, with its path."""
    reject_unknown(value, ("type", "function"), path)
    path = join(path, "function")
    function = as_object(value.get("function"), path)
    reject_unknown(function, ("name",), path)
    path = join(path, "name")
    return {as_str(function.get("name"), path): path}


def _word(value: str) -> Literal["auto", "none", "required"]:
    return "none" if value == "none" else "required" if value == "required" else "auto"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

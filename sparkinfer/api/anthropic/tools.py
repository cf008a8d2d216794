"""tools and tool_choice of the Messages API. Knows no conversation."""

from __future__ import annotations

from sparkinfer.api.function_tool import check_unique, function_tool
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
)  # fmt: skip
from sparkinfer.request import Tool, ToolPolicy


def read_tools(body: Object) -> tuple[tuple[Tool, ...], ToolPolicy]:
    """The client's own tools, and what it says about calling them.

    Tools of another type than "custom" are Anthropic's: run by its servers, or trained into its models without a
    schema. Beside others they are skipped; a request for nothing else, or that must call one, gets 400.
    """
    offered: list[Tool] = []
    skipped: dict[str, str] = {}  # name -> type
    for tool, path in _tools(body):
        kind = read_str(tool, "type", path)
        if _is_custom(kind):
            offered.append(_read_tool(tool, path))
        else:
            skipped[read_str(tool, "name", path) or str(kind)] = str(kind)
    if skipped and not offered:
        kinds = ", ".join(sorted(set(skipped.values())))
        fail("tools", f"only tools of type 'custom' can be called here, got {kinds[:200]}")
    policy = _read_choice(body, {tool.name for tool in offered}, skipped)
    return check_unique(offered, "tools"), policy


def skipped_kinds(body: Object) -> tuple[str, ...]:
    """Types of the tools that `read_tools` left out."""
    kinds = {read_str(tool, "type", path) for tool, path in _tools(body)}
    return tuple(sorted(str(kind)[:64] for kind in kinds if not _is_custom(kind)))


def schema_paths(body: Object) -> tuple[str, ...]:
    """Where the schemas of the tools that `read_tools` offers stand."""
    return tuple(f"{path}.input_schema" for tool, path in _tools(body) if _is_custom(read_str(tool, "type", path)))


def _tools(body: Object) -> list[tuple[Object, str]]:
    tools = read_list(body, "tools") or []
    return [(as_object(tool, f"tools[{i}]"), f"tools[{i}]") for i, tool in enumerate(tools)]


def _is_custom(kind: str | None) -> bool:
    return kind in (None, "custom")


def _read_tool(tool: Object, path: str) -> Tool:
    name = as_str(tool.get("name"), join(path, "name"))
    schema = as_object(tool.get("input_schema"), join(path, "input_schema"))
    if schema.get("type", "object") != "object":
        fail(join(path, "input_schema.type"), "must be 'object'")
    description = read_str(tool, "description", path) or ""
    return function_tool(name, description, schema, path, strict=read_bool(tool, "strict", False, path))


def _read_choice(body: Object, names: set[str], skipped: dict[str, str]) -> ToolPolicy:
    choice = read_object(body, "tool_choice")
    if choice is None:
        return ToolPolicy()
    kind = read_choice(choice, "type", ("auto", "any", "tool", "none"), "tool_choice")
    if kind is None:
        fail("tool_choice.type", "is required")
    parallel = not read_bool(choice, "disable_parallel_tool_use", False, "tool_choice")
    if kind in ("any", "tool") and not names:
        fail("tool_choice", f"{kind!r} needs tools")
    if kind == "tool":
        name = as_str(choice.get("name"), "tool_choice.name")
        if name in skipped:
            fail("tool_choice.name", f"tools of type {skipped[name][:64]!r} cannot be called here")
        if name not in names:
            fail("tool_choice.name", f"no tool is called {name[:64]!r}")
        return ToolPolicy(choice="required", allowed=(name,), parallel=parallel)
    if kind == "any":
        return ToolPolicy(choice="required", parallel=parallel)
    return ToolPolicy(choice="none" if kind == "none" else "auto", parallel=parallel)

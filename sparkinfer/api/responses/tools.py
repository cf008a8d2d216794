"""tools and tool_choice of the Responses API, and the way back from a call to the client's own tool.

Functions are offered as they are; the tools of a namespace under joined names; a freeform (custom) tool as a function
with one text. Tools that OpenAI's servers run are skipped. Knows no conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkinfer.api.function_tool import check_unique, function_tool
from sparkinfer.api.schema import (
    Object,
    as_list,
    as_object,
    as_str,
    fail,
    join,
    read_bool,
    read_choice,
    read_list,
    read_object,
    read_str,
)
from sparkinfer.request import Tool, ToolPolicy

CUSTOM_INPUT = "input"  # the one parameter of a freeform tool


@dataclass(frozen=True, slots=True)
class ClientTool:
    """What a function that the model may call is to the client."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(slots=True)
class ToolBox:
    """Everything that is offered. by_name: under the names that the model knows."""

    tools: list[Tool] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)  # where the schema, or the form, of each stands
    by_name: dict[str, ClientTool] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)  # types
    keeps_first: bool = False  # of two tools with one name

    def add(self, tool: Object, path: str, namespace: str | None = None) -> None:
        """Take in one entry of `tools`."""
        kind = read_str(tool, "type", path)
        if kind is None:
            fail(join(path, "type"), "is required")
        if kind == "namespace" and namespace is None:
            name = as_str(tool.get("name"), join(path, "name"))
            for i, inner in enumerate(as_list(tool.get("tools"), join(path, "tools"))):
                where = f"{path}.tools[{i}]"
                self.add(as_object(inner, where), where, name)
        elif kind in ("function", "custom"):
            self._offer(tool, path, namespace, is_custom=kind == "custom")
        else:
            self.skipped.add(kind[:64])

    def _offer(self, tool: Object, path: str, namespace: str | None, *, is_custom: bool) -> None:
        name = as_str(tool.get("name"), join(path, "name"))
        flat = flat_name(name, namespace)
        if self.keeps_first and flat in self.by_name:
            return
        description = read_str(tool, "description", path) or ""
        if is_custom:
            parameters: Object | None = _freeform(tool, path)
        else:
            parameters = read_object(tool, "parameters", path)
        strict = read_bool(tool, "strict", False, path)
        self.tools.append(function_tool(flat, description, parameters, path, strict=strict))
        self.paths.append(join(path, "format" if is_custom else "parameters"))
        self.by_name[flat] = ClientTool(name, namespace, is_custom)


def read_tools(body: Object, late: Sequence[tuple[Object, str]] = ()) -> tuple[ToolBox, ToolPolicy]:
    """The tools of `body`, and what it says about calling them.

    late: tools that came in the course of the conversation, each with its path; those that are offered already stay
    """
    box = ToolBox()
    for i, tool in enumerate(read_list(body, "tools") or []):
        box.add(as_object(tool, f"tools[{i}]"), f"tools[{i}]")
    check_unique(box.tools, "tools")
    box.keeps_first = True
    for late_tool, path in late:
        box.add(late_tool, path)
    check_unique(box.tools, "tools")
    choice, allowed = _read_choice(body.get("tool_choice"), box)
    parallel = read_bool(body, "parallel_tool_calls", True)
    if not box.tools:
        if choice == "required":
            fail("tool_choice", "needs a tool that can be called here")
        return box, ToolPolicy()
    return box, ToolPolicy(choice=choice, allowed=allowed, parallel=parallel)


def flat_name(name: str, namespace: str | None) -> str:
    """The name by which the model knows a tool of `namespace`."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def _freeform(tool: Object, path: str) -> dict[str, Any]:
    """Parameters of a freeform tool: one text, with the grammar that the client wants it to follow.

    A pattern is kept to; a Lark grammar is told to the model.
    """
    described: dict[str, Any] = {"type": "string", "description": "The whole input of the tool, as plain text."}
    form = read_object(tool, "format", path)
    if form is not None and form.get("type") == "grammar":
        where = join(path, "format")
        definition = as_str(form.get("definition"), join(where, "definition"))
        syntax = read_choice(form, "syntax", ("lark", "regex"), where) or "lark"
        if syntax == "regex":
            described["pattern"] = f"^(?:{definition})$"
        described["description"] += f" It follows this {syntax} grammar:\n{definition}"
    return {"type": "object", "properties": {CUSTOM_INPUT: described}, "required": [CUSTOM_INPUT],
            "additionalProperties": False}  # fmt: skip


Word = Literal["auto", "none", "required"]
_WORDS: Mapping[str, Word] = {"auto": "auto", "none": "none", "required": "required"}


def _read_choice(value: Any, box: ToolBox) -> tuple[Word, tuple[str, ...]]:
    path = "tool_choice"
    if value is None:
        return "auto", ()
    if isinstance(value, str):
        if value not in _WORDS:
            fail(path, f"must be one of {', '.join(_WORDS)}, or an object, got {value[:64]!r}")
        return _WORDS[value], ()
    choice = as_object(value, path)
    if choice.get("type") == "allowed_tools":
        mode = read_choice(choice, "mode", ("auto", "required"), path) or "auto"
        entries = as_list(choice.get("tools"), join(path, "tools"))
        found = [_find(as_object(entry, f"{path}.tools[{i}]"), f"{path}.tools[{i}]", box)
                 for i, entry in enumerate(entries)]  # fmt: skip
        names = tuple(name for name in found if name)
        return (_WORDS[mode], names) if names else ("none", ())
    name = _find(choice, path, box)
    if not name:
        fail(join(path, "type"), f"tools of type {str(choice.get('type'))[:64]!r} cannot be called here")
    return "required", (name,)


def _find(choice: Object, path: str, box: ToolBox) -> str:
    """The offered name that an entry means; "" for a tool that is skipped."""
    kind = read_str(choice, "type", path)
    if kind not in ("function", "custom"):
        return ""
    name = as_str(choice.get("name"), join(path, "name"))
    flat = flat_name(name, read_str(choice, "namespace", path))
    if flat not in box.by_name:
        fail(join(path, "name"), f"no tool is named {name[:64]!r}")
    return flat

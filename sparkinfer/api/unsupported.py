"""What OpenAI's API has and we have not: refused by name, never ignored where ignoring it would change the answer."""

from __future__ import annotations

from sparkinfer.api.schema import Object, as_object, fail, read_bool, read_choice, read_list, read_object

NULL_OR_ABSENT = ("audio", "web_search_options")


def refuse_unsupported(body: Object) -> None:
    """Raise RequestError 400 for tools to call, structured output, and output that is no text."""
    _refuse_tools(body)
    _refuse_functions(body)
    _refuse_response_format(body)
    for i, modality in enumerate(read_list(body, "modalities") or []):
        if modality != "text":
            fail(f"modalities[{i}]", "only text is supported")
    for key in NULL_OR_ABSENT:
        if body.get(key) is not None:
            fail(key, "is not supported")


def _refuse_tools(body: Object) -> None:
    """Tools may be listed with tool_choice "none", which keeps them out of the prompt, and not be called."""
    tools = read_list(body, "tools") or []
    for i, tool in enumerate(tools):
        as_object(tool, f"tools[{i}]")
    choice = body.get("tool_choice")
    if choice is not None and not isinstance(choice, dict):
        choice = read_choice(body, "tool_choice", ("none", "auto", "required"))
    if tools and choice != "none":
        fail("tools", "tool calling is not supported yet")
    if choice not in (None, "none", "auto"):
        fail("tool_choice", "tool calling is not supported yet")
    read_bool(body, "parallel_tool_calls", True)


def _refuse_functions(body: Object) -> None:
    """The older form of tools."""
    if read_list(body, "functions"):
        fail("functions", "tool calling is not supported yet")
    if body.get("function_call") not in (None, "none", "auto"):
        fail("function_call", "tool calling is not supported yet")


def _refuse_response_format(body: Object) -> None:
    response_format = read_object(body, "response_format")
    if response_format is None:
        return
    kind = read_choice(response_format, "type", ("text", "json_object", "json_schema"), "response_format")
    if kind is None:
        fail("response_format.type", "is required")
    if kind != "text":
        fail("response_format", f"type {kind!r} is not supported yet")

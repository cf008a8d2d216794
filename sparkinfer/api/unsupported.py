"""What OpenAI's API has and we have not: refused by name, never ignored where ignoring it would change the answer."""

from __future__ import annotations

from sparkinfer.api.schema import Object, fail, read_list

NULL_OR_ABSENT = ("audio", "web_search_options")


def refuse_unsupported(body: Object) -> None:
    """Raise RequestError 400 for output that is no text and for the older form of tools."""
    if read_list(body, "functions"):
        fail("functions", "is not supported; give them as tools")
    if body.get("function_call") not in (None, "none", "auto"):
        fail("function_call", "is not supported; use tool_choice")
    for i, modality in enumerate(read_list(body, "modalities") or []):
        if modality != "text":
            fail(f"modalities[{i}]", "only text is supported")
    for key in NULL_OR_ABSENT:
        if body.get(key) is not None:
            fail(key, "is not supported")


def refuse_tools(body: Object) -> None:
    """A text to continue has no turn in which a tool could be offered."""
    if read_list(body, "tools"):
        fail("tools", "tools need messages: use /v1/chat/completions")
    if body.get("tool_choice") not in (None, "none", "auto"):
        fail("tool_choice", "tools need messages: use /v1/chat/completions")

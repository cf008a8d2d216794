"""What items of a conversation change about the request itself: tools that are offered, reasoning, the form of text.

Knows neither messages nor what tools mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sparkinfer.api.schema import Object, as_list, as_object, join, read_object, read_str

_WITH_TOOLS = ("additional_tools", "tool_search_output")


class LateChanges:
    """Collected from items in their order; a later one counts over an earlier, and over the body."""

    def __init__(self, items: Iterable[tuple[Object, str]]) -> None:
        """items: with their paths."""
        self.tools: list[tuple[Object, str]] = []
        self._updates: dict[str, Object] = {}
        for item, path in items:
            kind = read_str(item, "type", path)
            if kind in _WITH_TOOLS:
                where = join(path, "tools")
                for i, tool in enumerate(as_list(item.get("tools") or [], where)):
                    self.tools.append((as_object(tool, f"{where}[{i}]"), f"{where}[{i}]"))
            elif kind == "configuration_update":
                for key in ("reasoning", "text"):
                    value = read_object(item, key, path)
                    if value is not None:
                        self._updates[key] = value

    def applied_to(self, body: Object) -> dict[str, Any]:
        """The body as the items have changed it."""
        changed = dict(body)
        for key, update in self._updates.items():
            changed[key] = {**(read_object(body, key) or {}), **update}
        return changed

"""The pages of a stored response's input, as query parameters ask for them. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sparkinfer.api.schema import fail

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
Item = dict[str, Any]


class PageQuery(NamedTuple):
    """limit items behind the one of id `after` (None: from the start), the newest first unless is_oldest_first."""

    limit: int
    after: str | None
    is_oldest_first: bool


def parse_page_query(query: Mapping[str, str]) -> PageQuery:
    """Raises RequestError 400 naming the parameter."""
    limit, order = query.get("limit", str(DEFAULT_LIMIT)), query.get("order", "desc")
    is_number = limit.isascii() and limit.isdecimal() and len(limit) <= len(str(MAX_LIMIT))
    if not is_number or not 1 <= int(limit) <= MAX_LIMIT:
        fail("limit", f"must be a whole number from 1 to {MAX_LIMIT}")
    if order not in ("asc", "desc"):
        fail("order", "must be asc or desc")
    return PageQuery(int(limit), query.get("after"), order == "asc")


def item_page(response_id: str, items: Sequence[Item], query: PageQuery) -> dict[str, Any]:
    """The list document; items without an id get one by their place. RequestError 400 for an unknown `after`."""
    named = [{"type": "message"} | item | {"id": _id_of(item, response_id, i)} for i, item in enumerate(items)]
    if not query.is_oldest_first:
        named.reverse()
    start = 0 if query.after is None else _behind(named, query.after)
    page = named[start : start + query.limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + len(page) < len(named),
    }


def _id_of(item: Item, response_id: str, place: int) -> str:
    own = item.get("id")
    return own if isinstance(own, str) and own else f"item_{response_id}_{place}"


def _behind(items: Sequence[Item], item_id: str) -> int:
    """Clients choose ids, the same one twice if they like: behind the last, or a walk over the pages would not end."""
    places = [i for i, item in enumerate(items) if item["id"] == item_id]
    if not places:
        fail("after", f"there is no item of id {item_id[:64]!r}")
    return places[-1] + 1

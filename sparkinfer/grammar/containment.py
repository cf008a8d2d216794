"""Where in an array the items stand that `contains` asks for. Knows keywords; never references or shapes.

A grammar goes from item to item and cannot count what matched. So the items that are asked for get fixed places, as far
in front as they can be; other arrays that would do are not offered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

MAX_OFFSET = 8          # places that may be left free in front
MAX_PLACEMENTS = 256    # tried


def placements(schemas: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Schemas that are enough for every `contains` of `schemas` to be met by an array, the likeliest first.

    Nothing when one of them wants more than it allows.
    """
    containing = [schema for schema in schemas if "contains" in schema]
    if any(_least(schema) > schema.get("maxContains", _least(schema)) for schema in containing):
        return
    fixed = max((_prefix_length(schema) for schema in schemas), default=0)
    total = sum(map(_least, containing))
    limits = [min(MAX_OFFSET, fixed + total - _least(schema)) if _least(schema) else 0 for schema in containing]
    every = itertools.product(*(range(limit + 1) for limit in limits))
    for offsets in sorted(itertools.islice(every, MAX_PLACEMENTS), key=sum):
        yield [_placed(schema, offset) for schema, offset in zip(containing, offsets)]


def _least(schema: dict[str, Any]) -> int:
    return int(schema.get("minContains", 1))


def _prefix_length(schema: dict[str, Any]) -> int:
    items = schema.get("items")
    return len(items) if isinstance(items, list) else len(schema.get("prefixItems", ()))


def _placed(schema: dict[str, Any], offset: int) -> dict[str, Any]:
    """With a maximum, what stands anywhere else does not match."""
    least, wanted = _least(schema), schema["contains"]
    if not least and "maxContains" not in schema:
        return {}
    other: Any = {"not": wanted} if "maxContains" in schema else True
    result = {"minItems": offset + least if least else 0, "prefixItems": [other] * offset + [wanted] * least}
    return result | ({"items": other} if "maxContains" in schema else {})

"""What a set of schemas leaves of one JSON type: a shape, in which every constraint stands for itself.

Knows constraints and how two of them add up; never keywords like anyOf, which only choose between shapes. A part of a
schema is known by its identity, so that shapes of recursive schemas are finite.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from sparkinfer.grammar.pattern import compiled


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """A schema of the document, or what it forbids; one object for each."""

    schema: Any                       # an object or a boolean
    path: str
    is_negated: bool = False


Parts = tuple[Part, ...]  # what has to hold all at once; in the order in which the document has them


@dataclass(frozen=True, slots=True)
class LiteralShape:
    """One of some values, of any type."""

    values: tuple[Any, ...]


@dataclass(slots=True)
class NumberShape:
    """Bounds belong to the range unless they are open."""

    is_integer: bool = False
    low: Decimal | None = None
    high: Decimal | None = None
    is_low_open: bool = False
    is_high_open: bool = False
    multiples: list[Decimal] = field(default_factory=list)
    excluded: list[Any] = field(default_factory=list)
    path: str = ""                    # of the last multipleOf

    def at_least(self, bound: Decimal, is_open: bool) -> None:
        if self.low is None or bound > self.low or (bound == self.low and is_open):
            self.low, self.is_low_open = bound, is_open

    def at_most(self, bound: Decimal, is_open: bool) -> None:
        if self.high is None or bound < self.high or (bound == self.high and is_open):
            self.high, self.is_high_open = bound, is_open

    @property
    def is_empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and (self.is_low_open or self.is_high_open))


@dataclass(slots=True)
class StringShape:
    """Lengths are of characters."""

    min_length: int = 0
    max_length: int | None = None
    patterns: list[tuple[str, str]] = field(default_factory=list)      # (pattern, path of its keyword)
    not_patterns: list[tuple[str, str]] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    path: str = field(default="", compare=False)  # of the schema that limits the length

    @property
    def blamed(self) -> str:
        """The path of what makes the shape hard to hold, if anything does."""
        return next((path for _, path in (*self.patterns, *self.not_patterns)), self.path)

    @property
    def is_empty(self) -> bool:
        return self.max_length is not None and self.min_length > self.max_length

    @property
    def is_limited(self) -> bool:
        return self.min_length > 0 or self.max_length is not None


class ArraySource(NamedTuple):
    """What one schema says of an array's items."""

    prefix: tuple[Part, ...]
    items: Part | None                # of those after the prefix; None: anything


@dataclass(slots=True)
class ArrayShape:
    """Items are what all sources together make them."""

    sources: list[ArraySource] = field(default_factory=list)
    min_items: int = 0
    max_items: int | None = None
    unique_path: str | None = None    # of uniqueItems

    def item(self, index: int) -> Parts:
        """What the item at `index` has to be."""
        parts = (s.prefix[index] if index < len(s.prefix) else s.items for s in self.sources)
        return tuple(part for part in parts if part is not None)

    @property
    def prefix_length(self) -> int:
        return max((len(source.prefix) for source in self.sources), default=0)

    @property
    def is_empty(self) -> bool:
        return self.max_items is not None and self.min_items > self.max_items


class ObjectSource(NamedTuple):
    """What one schema says of an object's values, by their names."""

    properties: dict[str, Part]
    patterns: tuple[tuple[str, str, Part], ...]  # (pattern, path, schema)
    additional: Part | None           # for every other name; None: anything

    def parts_of(self, name: str) -> Parts:
        """What the value of a name has to be."""
        found = [part for pattern, _, part in self.patterns if compiled(pattern).search(name)]
        if name in self.properties:
            return (self.properties[name], *found)
        return (self.additional,) if not found and self.additional is not None else tuple(found)


@dataclass(slots=True)
class ObjectShape:
    """Properties are what all sources together make them."""

    sources: list[ObjectSource] = field(default_factory=list)
    required: list[str] = field(default_factory=list)
    names: list[Part] = field(default_factory=list)
    min_properties: int = 0
    max_properties: int | None = None
    path: str = ""                    # of the counts

    @property
    def listed(self) -> list[str]:
        """Every name that is spoken of, in the order in which they will be written."""
        names = [name for source in self.sources for name in source.properties]
        return list(dict.fromkeys([*names, *self.required]))

    @property
    def is_empty(self) -> bool:
        return self.max_properties is not None and max(self.min_properties, len(self.required)) > self.max_properties


Shape = LiteralShape | NumberShape | StringShape | ArrayShape | ObjectShape

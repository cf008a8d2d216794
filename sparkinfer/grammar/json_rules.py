"""Shapes as rules of a grammar for JSON text. Knows shapes and notation; never keywords, models or requests.

There is one rule for each set of schemas that have to hold together, so that recursive schemas become recursive rules.
What can never be finished (a list whose every node needs a next one) is left out before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sparkinfer.grammar.expansion import Expansion
from sparkinfer.grammar.member_sequence import repeated
from sparkinfer.grammar.number_rule import number_rule
from sparkinfer.grammar.object_rules import ObjectRules
from sparkinfer.grammar.output_grammar import Rule
from sparkinfer.grammar.pattern import PatternError
from sparkinfer.grammar.schema_document import fail
from sparkinfer.grammar.shapes import (
    ArrayShape,
    LiteralShape,
    NumberShape,
    ObjectShape,
    Parts,
    Shape,
    StringShape,
)
from sparkinfer.grammar.terminals import SHARED, json_literal, json_string
from sparkinfer.grammar.trial import is_satisfiable

MAX_RULES = 20_000
_MAX_INLINE_LITERALS = 8
_MAX_UNIQUE_VALUES = 12

Key = frozenset[int]


class JsonRules:
    """Rules of one document; their names begin with `prefix`."""

    def __init__(self, expansion: Expansion, prefix: str) -> None:
        self.expansion = expansion
        self._prefix = prefix
        self._names: dict[Key, str] = {}
        self._parts: dict[Key, Parts] = {}
        self._shapes: dict[Key, list[Shape]] = {}
        self._finishable: set[Key] = set()
        self._helpers: dict[str, str] = {}
        self._terminals: dict[str, str] = {}
        self._objects: dict[int, ObjectRules] = {}  # by the shape's identity: shapes are kept
        self._writing = ""                          # path of what is being written
        self.places: dict[str, str] = {}            # of rules and terminals, by name

    def rule(self, parts: Parts, path: str) -> Rule:
        """JSON text of what all of `parts` ask for. Raises RequestError 400."""
        helpers = self.write([parts])
        if not self.can_be(parts):
            narrowed = f", as far as {' and '.join(self.expansion.narrowed)} can be held to"
            blamed = self._dead_end(parts, set()) or path
            fail(blamed, "no value satisfies it" + (narrowed if self.expansion.narrowed else ""))
        return Rule(self.name(parts), helpers, tuple(self.expansion.approximations), path, self.places)

    def write(self, starts: Iterable[Parts]) -> dict[str, str]:
        """Rules of everything in `starts` that can be, by name; `helper` and `terminal` add to them."""
        for parts in starts:
            self._explore(parts)
        self._find_finishable()
        for key in [key for key in self._shapes if key in self._finishable]:
            self._writing = self._parts[key][-1].path if self._parts[key] else self.expansion.path
            self.places[self._names[key]] = self._writing
            self._helpers[self._names[key]] = self._text(key)
        return self._helpers

    # For ObjectRules too

    def can_be(self, parts: Parts) -> bool:
        """Whether some finite value is what `parts` ask for."""
        return frozenset(map(id, parts)) in self._finishable

    def name(self, parts: Parts) -> str:
        """The name of their rule."""
        return self._names[frozenset(map(id, parts))]

    def helper(self, text: str) -> str:
        """A rule of its own for `text`; its name."""
        name = f"{self._prefix}x{len(self._helpers)}"
        if len(self._helpers) > MAX_RULES:
            fail(self.expansion.path, "too large: its grammar has too many rules")
        self._helpers[name] = text
        return name

    def terminal(self, text: str) -> str:
        """A terminal for `text`; its name."""
        if text in SHARED:
            return text
        if text not in self._terminals:
            self._terminals[text] = f"{self._prefix}T{len(self._terminals)}".upper()
            self._helpers[self._terminals[text]] = text
            self.places[self._terminals[text]] = self._writing or self.expansion.path
        return self._terminals[text]

    # What there is

    def _explore(self, start: Parts) -> None:
        waiting = [start]
        while waiting:
            parts = waiting.pop()
            key = frozenset(map(id, parts))
            if key in self._shapes:
                continue
            if len(self._shapes) > MAX_RULES:
                fail(self.expansion.path, "too large: its grammar has too many rules")
            self._parts[key] = parts
            self._names[key] = f"{self._prefix}{len(self._names)}"
            self._shapes[key] = self._usable(self.expansion.shapes(parts))
            waiting += [child for shape in self._shapes[key] for child in self._children(shape)]

    def _usable(self, shapes: Iterable[Shape]) -> list[Shape]:
        return [s for s in shapes if not isinstance(s, StringShape) or self._can_match(s)]

    def _can_match(self, shape: StringShape) -> bool:
        try:
            text = json_string(shape)
            return text in SHARED or is_satisfiable(text)
        except PatternError as error:
            fail(shape.blamed or self.expansion.path, str(error))

    def _children(self, shape: Shape) -> Iterator[Parts]:
        if isinstance(shape, ArrayShape):
            yield from (shape.item(i) for i in range(shape.prefix_length + 1))
        elif isinstance(shape, ObjectShape):
            yield from self._object(shape).children()

    def _object(self, shape: ObjectShape) -> ObjectRules:
        if id(shape) not in self._objects:
            self._objects[id(shape)] = ObjectRules(self, shape)
        return self._objects[id(shape)]

    def _find_finishable(self) -> None:
        """The keys of what can be finished: with literals to begin with, then whatever they are enough for."""
        is_new = True
        while is_new:
            is_new = False
            for key, shapes in self._shapes.items():
                if key not in self._finishable and any(self._can_finish(shape) for shape in shapes):
                    self._finishable.add(key)
                    is_new = True

    def _can_finish(self, shape: Shape) -> bool:
        if isinstance(shape, ArrayShape):
            return all(self.can_be(parts) for parts in self._needed(shape))
        if isinstance(shape, ObjectShape):
            return self._object(shape).can_finish()
        if isinstance(shape, NumberShape):
            return number_rule(shape) is not None
        return True

    def _dead_end(self, parts: Parts, seen: set[Key]) -> str:
        """The path of what keeps `parts` from being finished, as far down as it shows; "" where it shows nowhere."""
        key = frozenset(map(id, parts))
        if key in seen:
            return ""
        seen.add(key)
        for shape in self._shapes[key]:
            for child in self._needed(shape):
                if not self.can_be(child):
                    return self._dead_end(child, seen)
        return parts[-1].path if parts else ""

    def _needed(self, shape: Shape) -> Iterator[Parts]:
        if isinstance(shape, ArrayShape):
            yield from (shape.item(i) for i in range(min(shape.min_items, shape.prefix_length + 1)))
        elif isinstance(shape, ObjectShape):
            yield from (self.expansion.property_parts(shape, name) for name in shape.required)

    # What is written

    def _text(self, key: Key) -> str:
        texts = [self._shape_text(shape) for shape in self._shapes[key] if self._can_finish(shape)]
        return " | ".join(dict.fromkeys(texts))

    def _shape_text(self, shape: Shape) -> str:
        if isinstance(shape, LiteralShape):
            return self._literals(shape)
        if isinstance(shape, NumberShape):
            text = number_rule(shape)
            assert text is not None, "it can be finished"
            return text if text.startswith("%json") else self.terminal(text)
        if isinstance(shape, StringShape):
            return self.terminal(json_string(shape))
        if isinstance(shape, ArrayShape):
            return self._array(shape)
        return self._object(shape).text()

    def _literals(self, shape: LiteralShape) -> str:
        texts = list(dict.fromkeys(json_literal(value) for value in shape.values))
        return " | ".join(texts) if len(texts) <= _MAX_INLINE_LITERALS else self.terminal(" | ".join(texts))

    def _array(self, shape: ArrayShape) -> str:
        if shape.unique_path is not None and (shape.max_items is None or shape.max_items > 1):
            unique = self._unique(shape)
            if unique is not None:
                return unique
            self.expansion.approximate(shape.unique_path, "uniqueItems")
        items = [shape.item(i) for i in range(shape.prefix_length)]
        most = shape.max_items
        for i, parts in enumerate([*items, shape.item(len(items))]):
            if not self.can_be(parts):
                most = i if most is None else min(i, most)
                break
        text = ""
        if most is None or most > len(items):
            text = self._rest(shape, most, len(items))
        for i in range(min(len(items), len(items) if most is None else most) - 1, -1, -1):
            text = f"{self.name(items[i])} {text}"
            if i:
                text = f"JSON_COMMA {text}"
            if i >= shape.min_items:
                text = f"({text})?"
        return f"JSON_ARRAY {text} JSON_ARRAY_END"

    def _rest(self, shape: ArrayShape, most: int | None, num_before: int) -> str:
        """Items after the prefix, each with a comma before it but for an array's first."""
        name = self.name(shape.item(num_before))
        low = max(0, shape.min_items - num_before)
        high = None if most is None else most - num_before
        if num_before:
            return repeated(f"JSON_COMMA {name}", low, high)
        more = f"{name} {repeated(f'JSON_COMMA {name}', max(0, low - 1), None if high is None else high - 1)}"
        return more if low else f"({more})?"

    def _unique(self, shape: ArrayShape) -> str | None:
        """Items that are all different, where there are few values: bit i of a parameter says that value i is used."""
        shapes = self._shapes[frozenset(map(id, shape.item(0)))]
        if shape.prefix_length or not all(isinstance(s, LiteralShape) for s in shapes):
            return None
        texts = list(dict.fromkeys(
            json_literal(value) for s in shapes if isinstance(s, LiteralShape) for value in s.values
        ))  # fmt: skip
        if len(texts) > _MAX_UNIQUE_VALUES:
            return None
        most = len(texts) if shape.max_items is None else min(shape.max_items, len(texts))
        if shape.min_items > most:
            return None
        width = f"[0:{len(texts)}]"
        more = self.helper("")
        ends = f'"" %if bit_count_ge({width}, {shape.min_items})'
        room = f"bit_count_lt({width}, {most})"
        nexts = [
            f"JSON_COMMA {text} {more}::set_bit({i}) %if and(bit_clear({i}), {room})" for i, text in enumerate(texts)
        ]
        del self._helpers[more]
        self._helpers[f"{more}::_"] = " | ".join([ends, *nexts])
        firsts = [f"{text} {more}::{1 << i}" for i, text in enumerate(texts)]
        inner = f"({' | '.join(firsts)})" if most else ""
        return f"JSON_ARRAY {inner if shape.min_items else inner + '?' if inner else ''} JSON_ARRAY_END"

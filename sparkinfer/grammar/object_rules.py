"""The rule of an object: its properties in order, then names of the client's choosing. Knows shapes and notation."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from sparkinfer.grammar import char_set
from sparkinfer.grammar.character_class import possible, sure
from sparkinfer.grammar.expansion import Expansion
from sparkinfer.grammar.member_sequence import MAX_COUNTED, CountedSequence, Member, sequence_text
from sparkinfer.grammar.pattern import PatternError, Term, compiled, full_match
from sparkinfer.grammar.schema_document import fail
from sparkinfer.grammar.shapes import LiteralShape, ObjectShape, Parts, StringShape
from sparkinfer.grammar.terminals import SHARED, json_literal, json_string
from sparkinfer.grammar.trial import is_satisfiable

_MAX_PATTERNS = 4  # of one object, whose every combination is a case of its own


class Rules(Protocol):
    """What is shared by all objects of a document."""

    expansion: Expansion

    def can_be(self, parts: Parts) -> bool: ...
    def name(self, parts: Parts) -> str: ...
    def helper(self, text: str) -> str: ...
    def terminal(self, text: str) -> str: ...


class _Extra(NamedTuple):
    """Names that are not listed, and what their values have to be."""

    key: str                          # the text of a terminal
    parts: Parts


class ObjectRules:
    """One object's."""

    def __init__(self, rules: Rules, shape: ObjectShape) -> None:
        self._rules = rules
        self._shape = shape
        self._expansion = rules.expansion
        names, self._name_shapes = self._names_allowed()
        self._listed = list(dict.fromkeys([*shape.listed, *names]))
        self._values = {name: self._expansion.property_parts(shape, name) for name in self._listed}
        required = tuple(shape.names)
        self._valid_names = [name for name in self._listed if self._expansion.is_valid(name, required)]
        self._extras = self._find_extras()

    def children(self) -> Iterator[Parts]:
        """What the values have to be."""
        yield from self._values.values()
        yield from (extra.parts for extra in self._extras)

    def can_finish(self) -> bool:
        """Whether every required property can be finished, and enough of the others."""
        properties = self._properties()
        if not all(name in properties for name in self._shape.required):
            return False
        has_extras = any(self._rules.can_be(extra.parts) for extra in self._extras)
        return has_extras or len(properties) >= self._shape.min_properties

    def text(self) -> str:
        """The right-hand side for the object."""
        extras = [
            f"{self._rules.terminal(extra.key)} JSON_COLON {self._rules.name(extra.parts)}"
            for extra in self._extras if self._rules.can_be(extra.parts)
        ]  # fmt: skip
        extra = "" if not extras else extras[0] if len(extras) == 1 else self._rules.helper(" | ".join(extras))
        shape, num_required = self._shape, len(self._shape.required)
        if extra and shape.min_properties > num_required + 1:
            self._expansion.approximate(shape.path, "minProperties")  # the same name might come twice
        members = [
            Member(f"{json_literal(name)} JSON_COLON {self._rules.name(self._values[name])}", name in shape.required)
            for name in self._properties()
        ]  # fmt: skip
        if shape.min_properties <= 1 and shape.max_properties is None:
            sequence = sequence_text(self._rules.helper, members, extra, is_empty_allowed=not shape.min_properties)
        elif len(members) > MAX_COUNTED:
            fail(shape.path, f"minProperties and maxProperties are supported for {MAX_COUNTED} properties at most")
        else:
            limits = (shape.min_properties, shape.max_properties)
            sequence = CountedSequence(self._rules.helper, members, extra, limits).text()
        return f"JSON_OBJECT {sequence} JSON_OBJECT_END"

    def _properties(self) -> list[str]:
        """The listed names that can have a value."""
        return [name for name in self._valid_names if self._rules.can_be(self._values[name])]

    def _names_allowed(self) -> tuple[list[str], list[StringShape]]:
        """What propertyNames leaves: some names, and shapes of others."""
        if not self._shape.names:
            return [], [StringShape()]
        names: list[str] = []
        shapes: list[StringShape] = []
        for shape in self._expansion.shapes(tuple(self._shape.names)):
            if isinstance(shape, LiteralShape):
                names += [value for value in shape.values if isinstance(value, str)]
            elif isinstance(shape, StringShape):
                shapes.append(shape)
        return names, shapes

    def _find_extras(self) -> list[_Extra]:
        """One for each set of patterns that a name can match."""
        patterns: dict[str, str] = {p: path for source in self._shape.sources for p, path, _ in source.patterns}
        if len(patterns) > _MAX_PATTERNS:
            fail(next(iter(patterns.values())), f"one object may have {_MAX_PATTERNS} patterns")
        extras = []
        for matched in itertools.product((True, False), repeat=len(patterns)):
            case = dict(zip(patterns, matched))
            parts = self._parts_of(case)
            if any(part.schema is False for part in parts):
                continue
            for shape in self._name_shapes:
                key = self._key(shape, case, patterns)
                if key is not None:
                    extras.append(_Extra(key, parts))
        return extras

    def _parts_of(self, case: dict[str, bool]) -> Parts:
        parts: list[Any] = []
        for source in self._shape.sources:
            matched = [part for pattern, _, part in source.patterns if case[pattern]]
            if not matched and source.additional is not None:
                matched = [source.additional]
            parts += matched
        return tuple(dict.fromkeys(parts))

    def _key(self, shape: StringShape, case: dict[str, bool], paths: dict[str, str]) -> str | None:
        """A terminal for unlisted names of a shape that match the patterns of a case; None: there are none."""
        more: list[Term] = []
        for pattern, is_matched in case.items():
            try:
                terms = full_match(pattern, char_set.in_json, sure if is_matched else possible)
            except PatternError as error:
                fail(f"{paths[pattern]}.{pattern}", str(error))
            if len(terms) > 1 and not is_matched:
                fail(f"{paths[pattern]}.{pattern}", "look-ahead is not supported beside other names")
            more += terms if is_matched else [Term(terms[0].regex, not terms[0].is_negated)]
        taken = [name for name in self._listed if all(
            (compiled(pattern).search(name) is not None) == is_matched for pattern, is_matched in case.items()
        )]  # fmt: skip
        unlisted = dataclasses.replace(shape, excluded=[*shape.excluded, *taken])
        try:
            key = json_string(unlisted, more)
            return key if key in SHARED or is_satisfiable(key) else None
        except PatternError as error:
            fail(unlisted.blamed or next(iter(paths.values()), self._expansion.path), str(error))

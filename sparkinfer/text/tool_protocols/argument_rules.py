"""The arguments of a function as rules, for protocols that write each in markup of its own. Knows shapes and notation.

There is one rule for each way in which a schema lets a function be called, with the arguments in the order of the
schema. A value's strings are text up to its end tag, which the text cannot hold; everything else is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from sparkinfer.grammar import char_set
from sparkinfer.grammar.expansion import Expansion
from sparkinfer.grammar.json_rules import JsonRules
from sparkinfer.grammar.member_sequence import MAX_COUNTED, CountedSequence, Member
from sparkinfer.grammar.output_grammar import Rule, literal, markup_free, regex_escaped
from sparkinfer.grammar.pattern import PatternError, full_match
from sparkinfer.grammar.schema_document import SchemaDocument, fail
from sparkinfer.grammar.shapes import (
    ArrayShape,
    LiteralShape,
    NumberShape,
    ObjectShape,
    Part,
    Parts,
    Shape,
    StringShape,
)
from sparkinfer.grammar.terminals import SHARED, raw_string
from sparkinfer.grammar.trial import is_satisfiable
from sparkinfer.text.tool_protocols.markup import MAX_NAME_CHARACTERS, Tags

_NO_STRING = {"type": ["number", "boolean", "null", "array", "object"]}
_NAME = "[A-Za-z0-9_.:\\-]{1,64}"


class _Value(NamedTuple):
    """What a value may be."""

    texts: list[str]                  # terminals of its strings
    others: Parts | None              # what its other values have to be; None: there are none


class ArgumentRules:
    """One function's."""

    def __init__(self, schema: Any, path: str, tags: Tags, forbidden: Iterable[str], prefix: str) -> None:
        """forbidden: what strings may not spell, all beginning with "<"; prefix: of the names of all rules."""
        self._tags = tags
        self._path = path
        self._free_of = [markup_free("[^<", forbidden)]
        self._expansion = Expansion(SchemaDocument(schema, path, schema))
        self._rules = JsonRules(self._expansion, prefix)
        self._no_string = self._expansion.part(_NO_STRING, path)
        self._root = self._expansion.part(schema, path)
        self._values: dict[frozenset[int], _Value] = {}
        self._is_unambiguous = False   # a name tells which of _values is being written
        self._has_limited_text = False

    def rule(self) -> Rule:
        """All ways to call the function. Raises RequestError 400 for a schema that cannot be kept to."""
        shapes = [s for s in self._expansion.shapes((self._root,)) if isinstance(s, ObjectShape)]
        self._is_unambiguous = len(shapes) == 1 and _num_extra(shapes[0]) <= 1
        values = [self._value(parts) for shape in shapes for parts in self._all_parts(shape)]
        written = self._rules.write(value.others for value in values if value.others is not None)
        self._note_ambiguity(shapes)
        ways = [text for shape in shapes if (text := self._way(shape)) is not None]
        if not ways:
            fail(self._path, "no arguments satisfy it")
        text = " | ".join(dict.fromkeys(ways))
        return Rule(
            text, {**SHARED, **written}, tuple(self._expansion.approximations), self._path, self._rules.places,
            self._end if self._has_limited_text else "",
        )  # fmt: skip

    @property
    def _end(self) -> str:
        """What comes behind a value."""
        return self._tags.value_lead + self._tags.end + "\n"

    def _way(self, shape: ObjectShape) -> str | None:
        """The arguments of one shape; None if one that is required has no value."""
        members = []
        for name in shape.listed:
            self._check_name(name)
            value = self._value(self._expansion.property_parts(shape, name))
            texts = self._value_texts(value)
            if texts:
                members.append(Member(self._argument(literal(name), texts), name in shape.required))
            elif name in shape.required:
                return None
        extra = self._extra(shape, bool(members))
        least, most = shape.min_properties, shape.max_properties
        if (least <= len(shape.required) and (most is None or most >= len(members))) or len(members) > MAX_COUNTED:
            if len(members) > MAX_COUNTED and (least or most is not None):
                self._expansion.approximate(shape.path, "minProperties and maxProperties")
            parts = [m.text if m.is_required else f"({m.text})?" for m in members]
            return " ".join([*parts, f"({extra})*"] if extra else parts) or '""'
        if not extra and least > len(members):
            return None
        return CountedSequence(self._helper, members, extra, (least, most)).text().replace("JSON_COMMA ", "") or '""'

    def _check_name(self, name: str) -> None:
        """Names stand in tags as they are."""
        if not name or len(name) > MAX_NAME_CHARACTERS or any(char in name for char in f"<>\r\n{self._tags.tail}"):
            fail(f"{self._path}.properties", f"the model's tool calls cannot have an argument named {name[:64]!r}")

    def _helper(self, text: str) -> str:
        return self._rules.helper(text.replace("JSON_COMMA ", ""))

    def _argument(self, name: str, texts: list[str]) -> str:
        """One argument, in a rule of its own. name: Lark's text for it."""
        tags = self._tags
        head, tail = literal(tags.key), literal(tags.tail + tags.value_lead)
        return self._rules.helper(f"{head} {name} {tail} ({' | '.join(texts)})")

    def _value_texts(self, value: _Value) -> list[str]:
        """The alternatives of a value, each with its end tag."""
        end = literal(self._end)
        texts = [self._rules.terminal(f"({text}) {end}") for text in value.texts]
        if value.others is not None and self._rules.can_be(value.others):
            texts.append(f"{self._rules.name(value.others)} {end}")
        return texts

    def _value(self, parts: Parts) -> _Value:
        key = frozenset(map(id, parts))
        if key not in self._values:
            self._values[key] = self._find_value(parts)
        return self._values[key]

    def _find_value(self, parts: Parts) -> _Value:
        texts: list[str] = []
        has_others = not parts
        shapes: list[Shape] = self._expansion.shapes(parts) if parts else [StringShape()]
        for shape in shapes:
            if isinstance(shape, StringShape):
                texts += self._raw(shape, _first_characters(shapes) if self._is_unambiguous else None)
            elif isinstance(shape, LiteralShape):
                strings = [value for value in shape.values if isinstance(value, str)]
                texts += [literal(text) for text in strings if self._is_free(text)]
                has_others = has_others or len(strings) < len(shape.values)
            else:
                has_others = True
        return _Value(texts, (*parts, self._no_string) if has_others else None)

    def _raw(self, shape: StringShape, rivals: str | None) -> list[str]:
        """rivals: as raw_string has them"""
        self._has_limited_text = self._has_limited_text or shape.is_limited or bool(shape.excluded)
        try:
            text = raw_string(shape, self._free_of, rivals)
            return [f"({text})"] if is_satisfiable(text) else []
        except PatternError as error:
            fail(shape.blamed or self._path, str(error))

    def _is_free(self, text: str) -> bool:
        return is_satisfiable(f"{literal(text)} & /{self._free_of[0]}/") if "<" in text else True

    # Arguments that the schema does not name

    def _extra(self, shape: ObjectShape, has_members: bool) -> str:
        """One more argument, where some are meant: a schema of theirs says so, or there are no others. Else ""."""
        alternatives: list[tuple[str, Part | None]] = []
        for source in shape.sources:
            for pattern, path, part in source.patterns:
                alternatives.append((self._pattern_name(pattern, path), part))
            if self._is_meant(source.additional, has_members):
                alternatives.append((f"/{_NAME}/", source.additional))
        taken = "|".join(map(regex_escaped, shape.listed))
        texts = []
        for name, schema in alternatives:
            values = self._value_texts(self._value((schema,) if schema is not None else ()))
            if values:
                terminal = self._rules.terminal(f"{name} & ~/({taken})/" if taken else name)
                texts.append(self._argument(terminal, values))
                self._expansion.approximate(self._path, "additionalProperties")  # a name might come twice
        return " | ".join(texts) if len(texts) < 2 else self._rules.helper(" | ".join(texts))

    def _is_meant(self, additional: Part | None, has_members: bool) -> bool:
        if additional is None or additional.schema is False:
            return False
        return not has_members if additional.schema in (True, {}) else True

    def _pattern_name(self, pattern: str, path: str) -> str:
        try:
            terms = full_match(pattern, char_set.raw)
        except PatternError as error:
            fail(f"{path}.{pattern}", str(error))
        return " & ".join([f"/{_NAME}/", *(f"{'~' * term.is_negated}/{term.regex}/" for term in terms)])

    def _all_parts(self, shape: ObjectShape) -> Iterable[Parts]:
        yield from (self._expansion.property_parts(shape, name) for name in shape.listed)
        for source in shape.sources:
            yield from ((part,) for _, _, part in source.patterns)
            if source.additional is not None and source.additional.schema is not False:
                yield (source.additional,)

    def _note_ambiguity(self, shapes: list[ObjectShape]) -> None:
        """Text of a string in one way may be JSON in another; the reader does not know which way was taken."""
        ways: dict[str, set[frozenset[int]]] = {}
        for shape in shapes:
            for name in shape.listed:
                parts = self._expansion.property_parts(shape, name)
                ways.setdefault(name, set()).add(frozenset(map(id, parts)))
        for name, keys in ways.items():
            values = [self._values[key] for key in keys]
            if len(keys) > 1 and any(v.texts for v in values) and any(v.others is not None for v in values):
                self._expansion.approximate(f"{self._path}.properties.{name}", "strings and other values by turns")


def _num_extra(shape: ObjectShape) -> int:
    """Alternatives for arguments that the schema does not name."""
    return sum(len(s.patterns) + (s.additional is not None and s.additional.schema is not False) for s in shape.sources)


def _first_characters(shapes: list[Shape]) -> str | None:
    """What the values that are written as JSON begin with, and literal strings; None: it is not known."""
    firsts = ""
    for shape in shapes:
        match shape:
            case LiteralShape():
                texts = [value if isinstance(value, str) else json.dumps(value) for value in shape.values]
                firsts += "".join(text[:1] for text in texts)
            case NumberShape():
                firsts += "-0123456789"
            case ArrayShape():
                firsts += "["
            case ObjectShape():
                firsts += "{"
    return firsts if sum(isinstance(shape, StringShape) for shape in shapes) == 1 else None

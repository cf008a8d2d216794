"""From schemas that have to hold together to the shapes between which they leave a choice.

Follows references and works out every keyword that combines schemas. Knows schemas; never grammars.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sparkinfer.grammar.checker import first_violation
from sparkinfer.grammar.core_shapes import core_shapes
from sparkinfer.grammar.negation import negated
from sparkinfer.grammar.schema_document import SchemaDocument, fail
from sparkinfer.grammar.shapes import ArrayShape, LiteralShape, ObjectShape, Part, Parts, Shape

MAX_STEPS = 20_000      # of one document's expansion
MAX_SHAPES = 500        # of one value
_EMPTINESS_DEPTH = 4

Disjunction = list[Parts]  # any of these


class Expansion:
    """Of one document. Raises RequestError 400 for what is too complex, or cannot be."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._parts: dict[tuple[int, bool], Part] = {}
        self._kept: list[Any] = []  # schemas of our own: parts are known by identity
        self._negations: dict[int, Disjunction] = {}
        self._shapes: dict[frozenset[int], list[Shape]] = {}
        self._open: set[frozenset[int]] = set()  # being worked out
        self._steps = 0
        self.approximations: dict[str, None] = {}
        self.path = document.path

    @property
    def has_negations(self) -> bool:
        """Whether something was negated: then what is left may be less than what the schema allows."""
        return bool(self._negations)

    def part(self, schema: Any, path: str, is_negated: bool = False) -> Part:
        """The one object for a schema of the document."""
        if isinstance(schema, bool) and is_negated:
            schema, is_negated = not schema, False
        return self._parts.setdefault((id(schema), is_negated), Part(schema, path, is_negated))

    def shapes(self, parts: Parts) -> list[Shape]:
        """What `parts` leave together; nothing when they contradict each other."""
        key = frozenset(map(id, parts))
        if key not in self._shapes:
            self._open.add(key)
            self._shapes[key] = self._alternatives([], parts, [], parts)
            self._open.discard(key)
        return self._shapes[key]

    def approximate(self, path: str, keyword: str) -> None:
        """Note what no grammar will hold."""
        self.approximations[f"{path}: {keyword}"] = None

    def is_valid(self, value: Any, parts: Parts) -> bool:
        """Whether a value is what all of `parts` ask for."""
        root = self._document.root
        return all((first_violation(part.schema, value, root) is None) != part.is_negated for part in parts)

    def is_surely_empty(self, parts: Parts, depth: int = _EMPTINESS_DEPTH) -> bool:
        """Whether no value can be what all of `parts` ask for, as far as a look at the first levels tells."""
        if frozenset(map(id, parts)) in self._open:
            return False
        return all(self._is_impossible(shape, depth) for shape in self.shapes(parts))

    def property_parts(self, shape: ObjectShape, name: str) -> Parts:
        """What the value of a name has to be."""
        return tuple(part for source in shape.sources for part in source.parts_of(name))

    def _is_impossible(self, shape: Shape, depth: int) -> bool:
        if depth == 0:
            return False
        if isinstance(shape, ObjectShape):
            return any(self.is_surely_empty(self.property_parts(shape, name), depth - 1) for name in shape.required)
        if isinstance(shape, ArrayShape):
            few = min(shape.min_items, shape.prefix_length + 1)
            return any(self.is_surely_empty(shape.item(i), depth - 1) for i in range(few))
        return False

    def _alternatives(
        self, cores: list[Part], added: Parts, choices: list[Disjunction], basis: Parts
    ) -> list[Shape]:
        """cores: parts worked out already; added: to be worked out; choices: still to be made; basis: all parts."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            fail(self._document.path, "too many combinations of anyOf, oneOf, allOf, not and if")
        cores, choices = list(cores), list(choices)
        for part in added:
            if not self._flatten(part, cores, choices, ()):
                return []
        values = next((v for core in cores if (v := _values(core.schema)) is not None), None)
        if values is not None:
            valid = tuple(value for value in values if self.is_valid(value, basis))
            return [LiteralShape(valid)] if valid else []
        shapes = core_shapes(cores, self.part)
        if not choices or not shapes:
            return shapes
        found: list[Shape] = []
        for choice in choices[0]:
            found += self._alternatives(cores, choice, choices[1:], (*basis, *choice))
            if len(found) > MAX_SHAPES:
                fail(basis[0].path, f"more than {MAX_SHAPES} alternatives for one value")
        return found

    def _flatten(self, part: Part, cores: list[Part], choices: list[Disjunction], trail: tuple[int, ...]) -> bool:
        """Work out one part; False when nothing is valid."""
        schema = part.schema
        if isinstance(schema, bool):
            return schema
        if id(part) in trail:
            fail(part.path, "refers to itself")
        trail = (*trail, id(part))
        if part.is_negated:
            if id(part) not in self._negations:
                self._negations[id(part)] = [self._own(alternative, part.path) for alternative in negated(schema)]
            choices.append(self._negations[id(part)])
            return True
        for child, path in self._all_of(part):
            if not self._flatten(self.part(child, path), cores, choices, trail):
                return False
        if "not" in schema and not self._flatten(
            self.part(schema["not"], f"{part.path}.not", is_negated=True), cores, choices, trail
        ):
            return False
        choices += self._choices(schema, part.path)
        cores.append(part)
        return True

    def _all_of(self, part: Part) -> Iterable[tuple[Any, str]]:
        schema = part.schema
        if "$ref" in schema:
            yield self._document.resolve(schema["$ref"], part.path)
        for i, child in enumerate(schema.get("allOf", ())):
            yield child, f"{part.path}.allOf[{i}]"

    def _own(self, schemas: Iterable[Any], path: str) -> Parts:
        """Parts of schemas that the document does not have."""
        kept = list(schemas)
        self._kept.append(kept)
        return tuple(self.part(schema, path) for schema in kept)

    def _choices(self, schema: dict[str, Any], path: str) -> list[Disjunction]:
        choices: list[Disjunction] = []
        if "anyOf" in schema:
            choices.append([(self.part(child, f"{path}.anyOf[{i}]"),) for i, child in enumerate(schema["anyOf"])])
        if "oneOf" in schema:
            choices.append(self._one_of(schema["oneOf"], path))
        if "if" in schema and ("then" in schema or "else" in schema):
            condition = schema["if"]
            met = (self.part(condition, f"{path}.if"), self.part(schema.get("then", True), f"{path}.then"))
            unmet = (
                self.part(condition, f"{path}.if", is_negated=True), self.part(schema.get("else", True), f"{path}.else")
            )  # fmt: skip
            choices.append([met, unmet])
        choices += self._dependencies(schema, path)
        if "contains" in schema and schema.get("minContains", 1) + ("maxContains" in schema):
            choices.append([self._own([_containing(schema)], path)])
        return choices

    def _one_of(self, children: list[Any], path: str) -> Disjunction:
        """Each alternative without the others, where they overlap."""
        parts = [self.part(child, f"{path}.oneOf[{i}]") for i, child in enumerate(children)]
        choice: Disjunction = []
        for i, part in enumerate(parts):
            others = [other for j, other in enumerate(parts) if j != i and not self.is_surely_empty((part, other))]
            exact = (part, *(self.part(other.schema, other.path, is_negated=True) for other in others))
            if others and self.is_surely_empty(exact) and not self.is_surely_empty((part,)):
                self.approximate(path, "oneOf")
                exact = (part,)
            choice.append(exact)
        return choice

    def _dependencies(self, schema: dict[str, Any], path: str) -> list[Disjunction]:
        choices: list[Disjunction] = []
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, needed in schema.get(keyword, {}).items():
                names = [name, *needed] if isinstance(needed, list) else [name]
                with_it = self._own([{"required": list(dict.fromkeys(names))}], path)
                if not isinstance(needed, list):
                    with_it = (*with_it, self.part(needed, f"{path}.{keyword}.{name}"))
                choices.append([self._own([{"properties": {name: False}}], path), with_it])
        return choices


def _containing(schema: dict[str, Any]) -> dict[str, Any]:
    """contains, with what it asks for at the beginning of the array."""
    least, wanted = int(schema.get("minContains", 1)), schema["contains"]
    result: dict[str, Any] = {"minItems": least, "prefixItems": [wanted] * least}
    if "maxContains" in schema:
        result["items"] = {"not": wanted}
    return result


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values: list[Any] | None = schema.get("enum")
    return values

"""From schemas that have to hold together to the shapes between which they leave a choice.

Follows references and works out every keyword that combines schemas. Knows schemas; never grammars.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sparkinfer.grammar.checker import Checker
from sparkinfer.grammar.containment import placements
from sparkinfer.grammar.core_shapes import core_shapes
from sparkinfer.grammar.discriminator import are_apart, told_apart_by
from sparkinfer.grammar.negation import is_complete, negated
from sparkinfer.grammar.schema_document import ANNOTATIONS, MAX_BOUND, MAXIMA, SchemaDocument, fail
from sparkinfer.grammar.shapes import ArrayShape, LiteralShape, ObjectShape, Part, Parts, Shape

MAX_STEPS = 20_000      # of one document's expansion
MAX_SHAPES = 2_000      # of one value
MAX_REFERENCES = 16     # one behind the other
_EMPTINESS_DEPTH = 4

Disjunction = list[Parts]  # any of these
Trail = tuple[int, ...]    # identities of the parts that a part says something about the same value through


class _Added(NamedTuple):
    parts: Parts
    trail: Trail


class Expansion:
    """Of one document. Raises RequestError 400 for what is too complex, or cannot be."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._parts: dict[tuple[int, bool], Part] = {}
        self._kept: list[Any] = []  # schemas of our own: parts are known by identity
        self._negations: dict[int, Disjunction] = {}
        self._shapes: dict[frozenset[int], list[Shape]] = {}
        self._open: set[frozenset[int]] = set()  # being worked out
        self._checkers: dict[int, Checker] = {}
        self._steps = 0
        self.approximations: dict[str, None] = {}
        self.narrowed: dict[str, None] = {}  # how what is left may be less than what the schema allows
        self.path = document.path

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
            self._shapes[key] = self._alternatives([], _Added(parts, ()), [], parts)
            self._open.discard(key)
        return self._shapes[key]

    def approximate(self, path: str, keyword: str) -> None:
        """Note what no grammar will hold."""
        self.approximations[f"{path}: {keyword}"] = None

    def is_valid(self, value: Any, parts: Parts) -> bool:
        """Whether a value is what all of `parts` ask for."""
        for part in parts:
            if id(part) not in self._checkers:
                self._checkers[id(part)] = Checker(part.schema, self._document.root)
            if (self._checkers[id(part)].first_violation(value) is None) == part.is_negated:
                return False
        return True

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
        self, cores: list[Part], added: _Added, choices: list[tuple[Disjunction, Trail]], basis: Parts
    ) -> list[Shape]:
        """cores: parts worked out already; added: to be worked out; choices: still to be made; basis: all parts."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            fail(self._document.path, "too many combinations of anyOf, oneOf, allOf, not and if")
        cores, choices = list(cores), list(choices)
        for part in added.parts:
            if not self._flatten(part, cores, choices, added.trail):
                return []
        values = next((v for core in cores if (v := _values(core.schema)) is not None), None)
        if values is not None:
            valid = tuple(value for value in values if self.is_valid(value, basis))
            return [LiteralShape(valid)] if valid else []
        shapes = core_shapes(cores, self.part)
        if not choices or not shapes:
            return self._with_contained(cores, shapes) if any("contains" in core.schema for core in cores) else shapes
        found: list[Shape] = []
        disjunction, trail = choices[0]
        for choice in disjunction:
            found += self._alternatives(cores, _Added(choice, trail), choices[1:], (*basis, *choice))
            if len(found) > MAX_SHAPES:
                fail(basis[0].path, f"more than {MAX_SHAPES} alternatives for one value")
        return found

    def _with_contained(self, cores: list[Part], shapes: list[Shape]) -> list[Shape]:
        """Arrays that have what `contains` asks for, in the place of arrays."""
        self.narrowed["contains met by the first items that can"] = None
        found = [shape for shape in shapes if not isinstance(shape, ArrayShape)]
        arrays: list[Shape] = []
        for placed in placements([core.schema for core in cores]):
            more = self._own(placed, next(core.path for core in cores if "contains" in core.schema))
            arrays = [shape for shape in core_shapes([*cores, *more], self.part) if isinstance(shape, ArrayShape)]
            if not all(self._is_impossible(shape, _EMPTINESS_DEPTH) for shape in arrays):
                break
        return found + arrays

    def _flatten(
        self, part: Part, cores: list[Part], choices: list[tuple[Disjunction, Trail]], trail: Trail
    ) -> bool:
        """Work out one part; False when nothing is valid."""
        schema = part.schema
        if isinstance(schema, bool):
            return schema
        trail = (*trail, id(part))
        if part.is_negated:
            choices.append((self._opposites(part, trail), trail))
            return True
        for child in self._all_of(part, trail):
            if not self._flatten(child, cores, choices, trail):
                return False
        if "not" in schema and not self._flatten(
            self.part(schema["not"], f"{part.path}.not", is_negated=True), cores, choices, trail
        ):
            return False
        choices += [(choice, trail) for choice in self._choices(schema, part.path)]
        for keyword in MAXIMA:
            if schema.get(keyword, 0) > MAX_BOUND:
                self.approximate(part.path, keyword)
        cores.append(part)
        return True

    def _opposites(self, part: Part, trail: Trail) -> Disjunction:
        """What is enough for a part that is negated."""
        self.narrowed["the opposites in it (not, oneOf, if)"] = None
        if id(part) not in self._negations:
            found = [self._own(alternative, part.path) for alternative in negated(part.schema)]
            if "$ref" in part.schema:
                found.append((self._referred(part, trail),))
            self._negations[id(part)] = found
        return self._negations[id(part)]

    def _all_of(self, part: Part, trail: Trail) -> Iterable[Part]:
        if "$ref" in part.schema:
            yield self._referred(part, trail)
        for i, child in enumerate(part.schema.get("allOf", ())):
            yield self.part(child, f"{part.path}.allOf[{i}]")

    def _referred(self, part: Part, trail: Trail) -> Part:
        """What a part's reference leads to, negated as the part is."""
        reference = part.schema["$ref"]
        schema, path = self._document.resolve(reference, part.path)
        found = self.part(schema, path, part.is_negated)
        if id(found) in trail:
            fail(f"{part.path}.$ref", f"{reference!r:.100} leads back to here with no item or property between")
        return found

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
        return choices

    def _one_of(self, children: list[Any], path: str) -> Disjunction:
        """Each alternative without the others, where they overlap; those that others take up are left out."""
        parts = [self.part(child, f"{path}.oneOf[{i}]") for i, child in enumerate(children)]
        choice: Disjunction = []
        marks = [told_apart_by(self._behind_references(part)) for part in parts]
        for i, part in enumerate(parts):
            others = [
                other for j, other in enumerate(parts)
                if j != i and not are_apart(marks[i], marks[j]) and not self.is_surely_empty((part, other))
            ]  # fmt: skip
            exact = (part, *(self.part(other.schema, other.path, is_negated=True) for other in others))
            if not others or not self.is_surely_empty(exact) or self.is_surely_empty((part,)):
                choice.append(exact)
            elif not any(other.schema == part.schema for other in others) and not all(map(_is_complete, others)):
                self.approximate(path, "oneOf")
                choice.append((part,))
        return choice

    def _behind_references(self, part: Part) -> Any:
        """The first schema that says more than where to look."""
        schema, path = part.schema, part.path
        for _ in range(MAX_REFERENCES):
            if isinstance(schema, bool) or "$ref" not in schema or schema.keys() - ANNOTATIONS != {"$ref"}:
                break
            schema, path = self._document.resolve(schema["$ref"], path)
        return schema

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


def _is_complete(part: Part) -> bool:
    return is_complete(part.schema)


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values: list[Any] | None = schema.get("enum")
    return values

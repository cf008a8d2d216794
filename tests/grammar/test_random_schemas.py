"""Schemas that nobody would write: what walks bring is valid by the library's own validator, or they are refused."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema
from jsonschema import Draft202012Validator

from sparkinfer.errors import RequestError
from sparkinfer.grammar.checker import first_violation
from sparkinfer.grammar.json_schema import json_rule
from sparkinfer.grammar.output_grammar import Rule, assemble
from sparkinfer.grammar.tokenizer_adapter import byte_tokenizer
from tests.grammar.schema_corpus import ENFORCED
from tests.grammar.walks import Walker

WALKER = Walker(byte_tokenizer(()), lambda token: bytes([token]) if token < 256 else b"")
NAMES = st.sampled_from(["a", "b", "cd", "e"])
SMALL = st.integers(0, 4)
PLAIN_VALUES = st.one_of(st.none(), st.booleans(), st.integers(-5, 30), st.sampled_from(["", "a", "ab", "x-1"]))

LEAVES = st.one_of(
    st.just({}),
    st.sampled_from(["null", "boolean", "integer", "number", "string"]).map(lambda kind: {"type": kind}),
    st.fixed_dictionaries({}, optional={"minimum": st.integers(-20, 20), "maximum": st.integers(-20, 20)}),
    st.fixed_dictionaries({"type": st.just("integer")}, optional={
        "exclusiveMinimum": st.integers(-20, 20), "maximum": st.integers(0, 40), "multipleOf": st.integers(1, 6),
    }),
    st.fixed_dictionaries({"type": st.just("number")}, optional={
        "minimum": st.sampled_from([-1.5, 0, 0.1, 2.25]), "exclusiveMaximum": st.sampled_from([0.2, 1, 2.5, 100]),
    }),
    st.fixed_dictionaries({"type": st.just("string")}, optional={
        "minLength": SMALL, "maxLength": SMALL,
        "pattern": st.sampled_from(["^a", "b$", "^[a-c]*$", "x", "^(a|b)+-\\d$"]),
    }),
    st.lists(PLAIN_VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    PLAIN_VALUES.map(lambda value: {"const": value}),
)  # fmt: skip


def larger(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    child = children | st.booleans()
    several = st.lists(child, min_size=1, max_size=3)
    arrays = st.fixed_dictionaries({}, optional={
        "items": child, "prefixItems": several, "minItems": SMALL, "maxItems": SMALL, "contains": children,
    })  # fmt: skip
    objects = st.fixed_dictionaries({}, optional={
        "properties": st.dictionaries(NAMES, child, max_size=3), "required": st.lists(NAMES, unique=True, max_size=2),
        "additionalProperties": child, "patternProperties": st.dictionaries(st.sampled_from(["^a", "d$"]), child),
        "maxProperties": SMALL, "minProperties": st.integers(0, 1), "propertyNames": st.just({"maxLength": 2}),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, unique=True, max_size=2), max_size=1),
    })  # fmt: skip
    combined = st.fixed_dictionaries({}, optional={
        "anyOf": several, "oneOf": several, "allOf": several, "not": children,
        "if": children, "then": child, "else": child,
    })  # fmt: skip
    pairs = st.tuples(st.one_of(arrays, objects, LEAVES), combined)
    return st.one_of(arrays, objects, combined, pairs.map(lambda pair: {**pair[0], **pair[1]}))


def rule_or_refusal(schema: dict[str, Any]) -> Rule | RequestError:
    try:
        return json_rule(schema, "$")
    except RequestError as error:
        return error


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.recursive(LEAVES, larger, max_leaves=7))
def test_walks_are_valid_or_the_schema_is_refused(schema: dict[str, Any]) -> None:
    rule = rule_or_refusal(schema)
    if isinstance(rule, RequestError):
        assert (rule.status, str(rule.param)[0]) == (400, "$")
        return
    start = WALKER.compile(assemble({"start": rule}))
    validator = Draft202012Validator(schema)
    for number in range(6):
        tokens = WALKER.walk(start, num_free=4 * number, num_steps=300)
        if tokens is not None and not rule.approximations:
            value = json.loads(WALKER.bytes(tokens).decode())
            assert validator.is_valid(value), (schema, value)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_checker_agrees_with_a_generator_of_valid_values(data: st.DataObject) -> None:
    """Of everything but objects, which this release of the generator cannot make with this one of hypothesis."""
    left_out = ("$ref", "format", "pattern", "multipleOf", '"items": [', "contains", "object", "not", "Items")
    plain = [s for s, *_ in ENFORCED if "type" in json.dumps(s) and not any(word in json.dumps(s) for word in left_out)]
    schema = data.draw(st.sampled_from([s for s in plain if "type" in s]))
    assert first_violation(schema, data.draw(from_schema(schema))) is None


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_a_generator_of_valid_values_makes_gets_through_the_masks(data: st.DataObject) -> None:
    """But for numbers with a fraction or many digits, of which grammars write fewer than a schema allows."""
    left_out = ("$ref", "format", "pattern", "number", '"items": [', "contains", "object", "not", "if", "oneOf",
                "prefix")
    plain = [s for s, *_ in ENFORCED if isinstance(s, dict) and not any(word in json.dumps(s) for word in left_out)]
    schema = data.draw(st.sampled_from([s for s in plain if "type" in s or "enum" in s or "const" in s]))
    value = data.draw(from_schema(schema))
    text = json.dumps(value, ensure_ascii=False)
    if re.search(r"\d{16}|\d\.\d|\de|[\ud800-\udfff]", text) is None:
        assert WALKER.accepts(WALKER.compile(assemble({"start": json_rule(schema, "$")})), list(text.encode())), text

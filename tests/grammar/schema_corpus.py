# ruff: noqa: E501 (one case a line)
"""Schemas across all keywords, in the manner of public collections: tool arguments, API objects, odd ones.

ENFORCED: (schema, values that must be accepted as compact JSON, values that must not). Written for these tests.
"""

from __future__ import annotations

from typing import Any


def closed(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    """An object with these properties alone."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False} | more


NULL: dict[str, Any] = {"type": "null"}
INTEGER: dict[str, Any] = {"type": "integer"}
STRING: dict[str, Any] = {"type": "string"}
FLAG: dict[str, Any] = {"type": "boolean"}

Case = tuple[Any, list[Any], list[Any]]

TYPES: list[Case] = [
    ({}, [None, 1, "x", [], {}, [1, {"a": None}]], []),
    (True, [None, 1], []),
    (NULL, [None], [0, "null", False]),
    (FLAG, [True, False], [1, None, "true"]),
    (INTEGER, [0, -5, 10**17], [1.5, "1"]),
    ({"type": "number"}, [0, -1.5, 1e-7, 10**17], ["1", None]),
    (STRING, ["", "é😀", 'a"\\\n', "x" * 200], [1, None]),
    ({"type": "array"}, [[], [1, "a", None]], [{}]),
    ({"type": "object"}, [{}, {"a": {"b": [1]}}], [[]]),
    ({"type": ["string", "null"]}, ["x", None], [1]),
    ({"type": ["integer", "boolean", "array"]}, [1, True, []], ["x", 1.5, {}]),
    ({"type": ["number", "integer"]}, [1, 1.5], ["1"]),
    ({"title": "t", "description": "</tool_call> \" \n 😀", "default": 3, "$comment": "c", "type": "integer",
       "examples": [1], "deprecated": True, "x-order": 3, "nullable": True, "example": 4}, [3], ["3", None]),
]  # fmt: skip

NUMBERS: list[Case] = [
    ({"type": "integer", "minimum": 0}, [0, 7, 10**6], [-1]),
    ({"type": "integer", "maximum": -3}, [-3, -40], [-2, 0, 5]),
    ({"type": "integer", "minimum": 1, "maximum": 10}, [1, 5, 10], [0, 11, 100, -5]),
    ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, [1, 2], [0, 3]),
    ({"type": "integer", "minimum": -120, "maximum": 95}, [-120, -99, 0, 95], [-121, 96, 950]),
    ({"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740995}, [9007199254740993],
     [9007199254740992, 9007199254740996]),
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, [-(2**63), 2**63 - 1], [-(2**63) - 1, 2**63]),
    ({"type": "integer", "minimum": 2.5, "maximum": 4.5}, [3, 4], [2, 5]),
    ({"type": "number", "minimum": 0, "maximum": 1}, [0, 0.25, 1, 1.0], [1.01, -0.5, 2]),
    ({"type": "number", "exclusiveMinimum": 0}, [0.001, 3], [0, -1]),
    ({"type": "number", "exclusiveMaximum": 100}, [99.9, -5], [100, 100.5]),
    ({"type": "number", "minimum": -90, "maximum": 90}, [-90, -89.999, 12.5, 90], [-90.1, 91]),
    ({"type": "number", "minimum": 0.1, "maximum": 0.9}, [0.1, 0.55, 0.9], [0.05, 0.95, 1]),
    ({"type": "number", "minimum": 1e20}, [10**20, 10**20 + 1], [5]),
    ({"type": "integer", "multipleOf": 5}, [0, 5, -35, 1000], [1, 52]),
    ({"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 40}, [14, 35], [7, 42, 15]),
    ({"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 1}, [0, 0.25, 0.5, 1], [0.3]),
    ({"type": "number", "multipleOf": 0.01}, [0.07, 4.35, 3], [0.005]),
    ({"type": "integer", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "minimum": 0, "maximum": 50}, [12, 24], [4, 6]),
    ({"minimum": 3}, [3, "x", None], [2]),
    ({"type": "integer", "not": {"enum": [1, 2]}, "minimum": 0, "maximum": 5}, [0, 3], [1, 2]),
    ({"type": "integer", "not": {"multipleOf": 2}, "minimum": 1, "maximum": 1, "const": 1}, [1], [2]),
]  # fmt: skip

STRINGS: list[Case] = [
    ({"type": "string", "minLength": 1}, ["a", "é"], [""]),
    ({"type": "string", "pattern": "^[^\\uD800-\\uDFFF]{1,3}$"}, ["😀é"], [""]),
    ({"type": "string", "pattern": "^hello\\!$"}, ["hello!"], ["hello", "hello\\!"]),
    ({"type": "string", "maxLength": 3}, ["", "abc", "😀é\n"], ["abcd"]),
    ({"type": "string", "minLength": 1, "maxLength": 1}, ["é", "😀", '"'], ["ab", ""]),
    ({"type": "string", "maxLength": 0}, [""], ["a"]),
    ({"type": "string", "pattern": "^[a-z]+$"}, ["abc"], ["", "aB", "a1"]),
    ({"type": "string", "pattern": "^[A-Z]{2}-\\d{3,4}$"}, ["AB-123", "ZZ-9999"], ["AB-12", "ab-123"]),
    ({"type": "string", "pattern": "foo"}, ["foo", "a foo b"], ["fo"]),
    ({"type": "string", "pattern": "^a|b$"}, ["ax", "xb"], ["xa", "bx"]),
    ({"type": "string", "pattern": "(^a|b$)"}, ["ax", "xb"], ["xa", "bx"]),
    ({"type": "string", "pattern": '^"\\\\\\s?$'}, ['"\\', '"\\ '], ['"']),
    ({"type": "string", "pattern": "^.+@.+\\..+$"}, ["a@b.c"], ["a@b", "a\n@b.c"]),
    ({"type": "string", "pattern": "^(?=.*\\d)(?!abc)[a-z0-9]{3,5}$"}, ["a1b", "1abc"], ["abc", "abc1", "ab"]),
    ({"type": "string", "pattern": "^(?<year>\\d{4})$"}, ["2024"], ["24"]),
    ({"type": "string", "pattern": "^[^<>]*$"}, ["", "a b"], ["<", "a>"]),
    ({"type": "string", "pattern": "^\\S+$", "maxLength": 4}, ["ab", "é"], ["a b", "abcde"]),
    ({"type": "string", "pattern": "^[\\w.-]+$"}, ["a.b-c_1"], ["a b"]),
    ({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "z$"}]}, ["az", "abz"], ["a", "z"]),
    ({"type": "string", "not": {"pattern": "^a"}}, ["b", ""], ["a", "ab"]),
    ({"type": "string", "not": {"enum": ["a", "b"]}}, ["c", "ab"], ["a", "b"]),
    ({"type": "string", "not": {"const": ""}, "maxLength": 2}, ["a"], [""]),
    ({"type": "string", "format": "date"}, ["2024-12-31", "2024-02-29", "2000-02-29"],
     ["2024-13-01", "24-1-1", "2023-02-29", "1900-02-29", "0000-01-01", "0000-02-29"]),
    ({"type": "string", "format": "date-time"}, ["2024-12-31T23:59:59Z", "2024-01-01T00:00:00.5+02:00"],
     ["2024-12-31", "0000-12-31T23:59:59Z"]),
    ({"type": "string", "format": "time"}, ["23:59:59Z"], ["25:00:00Z"]),
    ({"type": "string", "format": "email"}, ["ann@example.com"], ["ann", "a@b"]),
    ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["123"]),
    ({"type": "string", "format": "ipv4"}, ["192.168.0.1"], ["256.1.1.1"]),
    ({"type": "string", "format": "ipv6"}, ["::1", "2001:db8::1"], ["1::2::3"]),
    ({"type": "string", "format": "hostname"}, ["a-b.example"], ["-a"]),
    ({"type": "string", "format": "uri"}, ["https://example.com/a?b=c#d"], ["example"]),
    ({"type": "string", "format": "duration"}, ["P1DT2H"], ["1D"]),
    ({"type": "string", "format": "of-our-own"}, ["anything"], [1]),
]  # fmt: skip

VALUES: list[Case] = [
    ({"const": 5}, [5], [4, "5"]),
    ({"const": {"a": [1, {"b": None}]}}, [], [{}, {"a": []}]),
    ({"enum": ["red", "green"]}, ["red", "green"], ["blue", "re"]),
    ({"enum": ["<a>", "é\n\"", 1.5, True, None]}, ["<a>", "é\n\"", 1.5, True, None], ["a", False]),
    ({"enum": list(range(50))}, [0, 49], [50]),
    ({"type": "string", "enum": ["a", 1, None]}, ["a"], [1, None]),
    ({"enum": ["a", "bb", "ccc"], "minLength": 2}, ["bb", "ccc"], ["a"]),
    ({"enum": [1, 5, 9], "maximum": 6}, [1, 5], [9]),
    ({"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}]}, [2, 3], [1, 4]),
    ({"not": {"type": "string"}}, [1, None, []], ["x"]),
    ({"not": {"type": ["object", "array", "string"]}}, [1, None, True], ["x", [], {}]),
    ({"type": ["boolean", "null"], "not": {"const": True}}, [False, None], [True]),
]  # fmt: skip

ARRAYS: list[Case] = [
    ({"type": "array", "items": INTEGER}, [[], [1, 2]], [["a"], [1.5]]),
    ({"type": "array", "items": INTEGER, "minItems": 1}, [[1], [1, 2, 3]], [[]]),
    ({"type": "array", "items": INTEGER, "maxItems": 2}, [[], [1], [1, 2]], [[1, 2, 3]]),
    ({"type": "array", "items": STRING, "minItems": 2, "maxItems": 3}, [["a", "b"], ["a", "b", "c"]], [["a"]]),
    ({"type": "array", "maxItems": 0}, [[]], [[1]]),
    ({"type": "array", "items": False}, [[]], [[1]]),
    ({"type": "array", "items": {"type": "array", "items": NULL}}, [[[]], [[None], []]], [[1]]),
    ({"type": "array", "prefixItems": [INTEGER, STRING], "items": False}, [[], [1], [1, "a"]], [["a"], [1, "a", 2]]),
    ({"type": "array", "prefixItems": [INTEGER, STRING], "items": False, "minItems": 2}, [[1, "a"]], [[1], []]),
    ({"type": "array", "prefixItems": [INTEGER], "items": NULL}, [[1], [1, None, None]], [[1, 2], [None]]),
    ({"type": "array", "prefixItems": [INTEGER], "items": NULL, "minItems": 3, "maxItems": 4},
     [[1, None, None], [1, None, None, None]], [[1, None], [1, None, None, None, None]]),
    ({"type": "array", "prefixItems": [INTEGER, False]}, [[], [1]], [[1, 2]]),
    ({"type": "array", "items": [INTEGER, STRING], "additionalItems": False}, [[1, "a"]], [[1, "a", 3], ["a"]]),
    ({"type": "array", "items": [INTEGER], "additionalItems": FLAG}, [[1, True]], [[1, 2]]),
    ({"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True}, [[], [1, 2], [3, 1, 2]], [[1, 1], [1, 2, 1]]),
    ({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2, "maxItems": 2},
     [["a", "b"]], [["a"], ["a", "a"], ["a", "b", "c"]]),
    ({"type": "array", "contains": {"const": 5}, "maxItems": 3}, [[5], [5, 1]], [[], [1]]),
    ({"type": "array", "items": INTEGER, "contains": {"minimum": 10}, "minContains": 2}, [[10, 11]], [[1, 2], [10]]),
    ({"type": "array", "contains": INTEGER, "maxContains": 1}, [[1], [1, "a"]], [[1, 2]]),
    ({"type": "array", "allOf": [{"contains": {"const": 0}}, {"contains": {"const": 1}}]}, [[0, 1], [0, 1, 5]], [[0], [1], []]),
    ({"type": "array", "prefixItems": [{"const": 0}], "contains": {"const": 1}}, [[0, 1], [0, 1, 2]], [[0], [1], [1, 0]]),
    ({"type": "array", "prefixItems": [STRING], "items": INTEGER, "contains": INTEGER}, [["a", 3], ["a", 3, 4]], [["a"], [3]]),
    ({"type": "array", "prefixItems": [STRING, STRING], "contains": INTEGER, "minContains": 2, "maxContains": 2}, [["a", "b", 3, 4], ["a", "b", 3, 4, None]], [["a", "b", 3], ["a", "b", 3, 4, 5]]),
    ({"type": "array", "contains": INTEGER, "not": {"contains": STRING}}, [[3], [3, None]], [["a"], [3, "a"], []]),
    ({"type": "array", "not": {"oneOf": [{"minItems": 2}]}}, [[], [1]], [[1, 2]]),
    ({"type": "integer", "not": {"oneOf": [{"minimum": 3}, {"maximum": 7}]}}, [3, 7, 5], [2, 8]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-9}, [], [0, 1e-8, 1]),
    ({"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 3, "maxItems": 3}, [[0, 0.5, 1]], [[0, -1, 2]]),
]  # fmt: skip

OBJECTS: list[Case] = [
    (closed({"a": INTEGER}), [{}, {"a": 1}], [{"a": "x"}, {"b": 1}]),
    (closed({"a": INTEGER, "b": STRING}, "a"), [{"a": 1}, {"a": 1, "b": "x"}], [{}, {"b": "x"}]),
    (closed({"a": NULL, "b": NULL, "c": NULL}, "b"), [{"b": None}, {"a": None, "b": None, "c": None}], [{"a": None}]),
    ({"type": "object", "properties": {"a": INTEGER}}, [{}, {"a": 1}, {"b": "x"}, {"a": 1, "z": []}], [{"a": "x"}]),
    ({"type": "object", "properties": {"a": INTEGER}, "required": ["a", "q"]}, [{"a": 1, "q": []}], [{"a": 1}]),
    ({"type": "object", "additionalProperties": INTEGER}, [{}, {"x": 1, "y": 2}], [{"x": "a"}]),
    ({"type": "object", "properties": {"a": STRING}, "additionalProperties": INTEGER},
     [{"a": "x", "b": 1}, {"b": 1}], [{"a": 1}, {"b": "x"}]),
    ({"type": "object", "additionalProperties": False}, [{}], [{"a": 1}]),
    (closed({"a": False, "b": NULL}), [{}, {"b": None}], [{"a": 1}]),
    (closed({'q"\\\n</p>': NULL, "é": NULL}), [{'q"\\\n</p>': None, "é": None}], [{"q": None}]),
    ({"type": "object", "patternProperties": {"^x-": INTEGER}, "additionalProperties": False},
     [{}, {"x-a": 1, "x-": 2}], [{"y": 1}, {"x-a": "s"}]),
    ({"type": "object", "patternProperties": {"^a": STRING, "b$": {"maxLength": 1}}},
     [{"ax": "long"}, {"ab": "s"}, {"c": 1}], [{"ab": "long"}, {"ax": 1}]),
    ({"type": "object", "properties": {"x-a": {"minimum": 3}}, "patternProperties": {"^x-": INTEGER}},
     [{"x-a": 3}, {"x-b": 1}], [{"x-a": 1}, {"x-b": "s"}]),
    ({"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}}, [{}, {"ab": 1}], [{"d": 1}]),
    ({"type": "object", "propertyNames": {"enum": ["p", "q"]}, "additionalProperties": INTEGER},
     [{}, {"p": 1}, {"p": 1, "q": 2}], [{"r": 1}, {"p": "s"}]),
    ({"type": "object", "minProperties": 1}, [{"a": 1}], [{}]),
    ({"type": "object", "maxProperties": 1}, [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    (closed({"a": NULL, "b": NULL, "c": NULL}, minProperties=2),
     [{"a": None, "c": None}, {"a": None, "b": None, "c": None}], [{}, {"b": None}]),
    (closed({"a": NULL, "b": NULL, "c": NULL}, "b", maxProperties=2),
     [{"b": None}, {"a": None, "b": None}], [{"a": None, "b": None, "c": None}]),
    (closed({"a": NULL, "b": NULL}, dependentRequired={"a": ["b"]}), [{}, {"b": None}, {"a": None, "b": None}], [{"a": None}]),
    (closed({"a": NULL, "b": NULL}, dependencies={"a": ["b"]}), [{"a": None, "b": None}], [{"a": None}]),
    (closed({"a": NULL, "b": {"type": ["null", "integer"]}},
            dependentSchemas={"a": {"properties": {"b": NULL}, "required": ["b"]}}),
     [{"b": 1}, {"a": None, "b": None}], [{"a": None}, {"a": None, "b": 1}]),
    (closed({"category": closed({"tags": {"type": "array", "items": STRING}, "category": STRING}, "category"),
             "limit": {"type": "integer", "minimum": 1, "maximum": 10}}, "limit"),
     [{"limit": 3}, {"category": {"category": "x"}, "limit": 1}], [{"limit": 11}, {"category": {}, "limit": 1}]),
]  # fmt: skip

_NODE = closed({"value": INTEGER, "next": {"anyOf": [{"$ref": "#/$defs/node"}, NULL]}}, "value", "next")
_TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}, "name": STRING},
         "required": ["name"], "additionalProperties": False}  # fmt: skip

COMBINATIONS: list[Case] = [
    ({"anyOf": [INTEGER, NULL]}, [1, None], ["x"]),
    ({"anyOf": [{"minimum": 10}, {"maximum": 1}], "type": "integer"}, [0, 1, 10], [5]),
    ({"anyOf": [closed({"a": INTEGER}, "a"), closed({"b": STRING}, "b")]}, [{"a": 1}, {"b": "x"}], [{}, {"a": 1, "b": "x"}]),
    ({"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 5}]}, [-1, 6], [0, 3, 5]),
    ({"oneOf": [STRING, NULL]}, ["x", None], [1]),
    ({"oneOf": [closed({"kind": {"const": "a"}, "v": INTEGER}, "kind"), closed({"kind": {"const": "b"}, "w": STRING}, "kind")]},
     [{"kind": "a", "v": 1}, {"kind": "b"}], [{"kind": "a", "w": "x"}, {"kind": "c"}]),
    (closed({"a": NULL, "b": NULL}, oneOf=[{"required": ["a"]}, {"required": ["b"]}]),
     [{"a": None}, {"b": None}], [{}, {"a": None, "b": None}]),
    ({"allOf": [{"properties": {"x": INTEGER}, "required": ["x"]},
                closed({"x": {"minimum": 3, "maximum": 12}, "y": NULL})]},
     [{"x": 4}, {"x": 12, "y": None}], [{"x": 2}, {}, {"x": 4, "z": 1}]),
    ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, [1], ["x", None]),
    (closed({"t": {"enum": ["x", "q"]}, "y": INTEGER, "z": FLAG},
            **{"if": {"properties": {"t": {"const": "x"}}, "required": ["t"]}, "then": {"required": ["y"]},
               "else": {"required": ["z"]}}),
     [{"t": "x", "y": 1}, {"t": "q", "z": True}, {"z": False}], [{"t": "x", "z": True}, {"t": "q", "y": 1}, {}]),
    ({"type": "integer", "if": {"minimum": 10}, "then": {"multipleOf": 5}, "minimum": 0, "maximum": 30}, [3, 15], [12]),
    ({"type": "object", "properties": {"a": {}}, "not": {"required": ["b"]}}, [{}, {"a": 1}], [{"b": 1}]),
    ({"$ref": "#/$defs/node", "$defs": {"node": _NODE}},
     [{"value": 1, "next": None}, {"value": 1, "next": {"value": 2, "next": None}}], [{"value": 1}, {"value": 1, "next": 3}]),
    (_TREE, [{"name": "a"}, {"children": [{"name": "b"}], "name": "a"}], [{"children": []}]),
    ({"definitions": {"a/b": {"m~n": INTEGER}}, "$ref": "#/definitions/a~1b/m~0n"}, [1], ["x"]),
    ({"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"enum": ["u", "v"]}}}, [["u", "v"], []], [["w"]]),
    (closed({"p": {"$ref": "#/$defs/pos", "description": "d"}}, **{"$defs": {"pos": {"type": "integer", "minimum": 1}}}),
     [{"p": 1}], [{"p": 0}]),
    (closed({"x": {"$ref": "#/$defs/s", "maxLength": 2}}, **{"$defs": {"s": STRING}}), [{"x": "ab"}], [{"x": "abc"}]),
    ({"not": {"not": INTEGER}}, [1], ["x"]),
    ({"not": {"$ref": "#/$defs/s"}, "$defs": {"s": {"type": ["string", "array", "object"]}}}, [1, None], ["x", []]),
    ({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
       "$defs": {"a": {"type": "string", "maxLength": 5}, "b": {"type": "string", "minLength": 3}}},
     ["a", "abcdef"], ["abcd", 1]),
    ({"oneOf": [STRING, STRING, NULL, FLAG]}, [None, True], ["x"]),
    ({"type": "integer", "multipleOf": 999_999_937, "minimum": -(10**10), "maximum": 10**10},
     [0, 999_999_937, -1_999_999_874], [1, 999_999_936]),
    ({"not": {"anyOf": [STRING, NULL, {"type": "number"}, {"type": ["array", "object"]}]}}, [True, False], [1, "x", None]),
]  # fmt: skip

SHAPES: list[Case] = [
    ({"oneOf": [{"$ref": f"#/$defs/s{i}"} for i in range(200)],
       "$defs": {f"s{i}": closed({"kind": {"const": f"k{i}"}, "v": INTEGER}, "kind", "v") for i in range(200)}},
     [{"kind": "k0", "v": 1}, {"kind": "k199", "v": 2}], [{"kind": "k200", "v": 1}, {"kind": "k1"}]),
    ({"anyOf": [closed({"kind": {"const": i}}, "kind") for i in range(1000)]}, [{"kind": 999}], [{"kind": 1000}]),
]  # fmt: skip

ENFORCED: list[Case] = [*TYPES, *NUMBERS, *STRINGS, *VALUES, *ARRAYS, *OBJECTS, *COMBINATIONS, *SHAPES]

ENFORCED.append(({"contains": INTEGER, "maxContains": 0}, ["x", None, {}], [[], [1], ["x"]]))

APPROXIMATED: list[tuple[Any, str]] = [
    ({"oneOf": [{"multipleOf": 3}, {"minimum": 100}], "type": "integer", "maximum": 150, "minimum": 0}, "$: oneOf"),
    ({"type": "array", "items": INTEGER, "uniqueItems": True}, "$: uniqueItems"),
    ({"type": "object", "minProperties": 3}, "$: minProperties"),
    ({"type": "string", "maxLength": 2**31 - 1}, "$: maxLength"),
    ({"type": "array", "maxItems": 10**18}, "$: maxItems"),
    ({"type": "object", "maxProperties": 2**31 - 1}, "$: maxProperties"),
    ({"oneOf": [{"type": "object", "additionalProperties": INTEGER}, {"type": "object", "additionalProperties": STRING}]},
     "$: oneOf"),
]  # fmt: skip

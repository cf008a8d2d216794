from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.api.json_body import MAX_CONTAINERS, MAX_DEPTH, parse_object
from sparkinfer.errors import RequestError

BAD = {
    "open brace": b"{",
    "empty": b"",
    "array": b"[]",
    "string": b'"x"',
    "null": b"null",
    "trailing comma": b'{"a":1,}',
    "trailing text": b'{"a":1} x',
    "duplicate key": b'{"a":1,"a":2}',
    "duplicate key deep inside": b'{"a":[{"b":{"c":1,"d":2,"c":3}}]}',
    "duplicate key by escape": b'{"a":1,"\\u0061":2}',
    "NaN": b'{"temperature":NaN}',
    "Infinity": b'{"temperature":Infinity}',
    "-Infinity": b'{"temperature":-Infinity}',
    "overflowing number": b'{"temperature":1e999}',
    "huge integer": b'{"seed":' + b"9" * 5000 + b"}",
    "lone surrogate": b'{"a":"\\ud800"}',
    "surrogates in the wrong order": b'{"a":"\\udc00\\ud800"}',
    "invalid UTF-8": b'{"a":"\xff"}',
    "UTF-8 of a surrogate": b'{"a":"\xed\xa0\x80"}',
    "cut character": b'{"a":"\xf0\x9f"}',
    "byte order mark": b'\xef\xbb\xbf{"a":1}',
    "raw newline in a string": b'{"a":"x\ny"}',
    "deep arrays": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 100_000,
    "too many containers": b'{"a":[' + b"[]," * MAX_CONTAINERS + b"[]]}",
    "zero byte": b"\x00",
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        parse_object(body)
    assert refused.value.status == 400
    json.dumps(refused.value.message, allow_nan=False).encode()  # the error itself can be sent


def test_duplicate_key_is_named() -> None:
    with pytest.raises(RequestError, match="duplicate key 'seed'"):
        parse_object(b'{"seed":1,"a":{"seed":2},"seed":3}')


def test_depth_limit_is_exact() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' + b"[" * (depth - 1) + b"1" + b"]" * (depth - 1) + b"}"

    assert parse_object(nested(MAX_DEPTH))
    with pytest.raises(RequestError, match="nested too deeply"):
        parse_object(nested(MAX_DEPTH + 1))


def test_brackets_inside_strings_are_text() -> None:
    text = "[{" * 5000 + '\\"]'
    assert parse_object(json.dumps({"a": text}).encode()) == {"a": text}


def test_paired_surrogates_are_one_character() -> None:
    assert parse_object(b'{"a":"\\ud83d\\ude00"}') == {"a": "😀"}


def test_integers_are_exact() -> None:
    assert parse_object(b'{"seed":9007199254740993}') == {"seed": 2**53 + 1}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), values, max_size=5), st.booleans())
@settings(max_examples=150)
def test_every_json_object_is_understood(value: dict[str, Any], ascii_only: bool) -> None:
    assert parse_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=60) | st.text('{}[]",:\\u0dD8aN1e9 ', max_size=40).map(str.encode))
@settings(max_examples=300)
def test_any_bytes_give_an_object_or_a_400(body: bytes) -> None:
    try:
        value = parse_object(body)
    except RequestError:  # anything else would be a bug
        return
    assert isinstance(value, dict)
    assert not any(isinstance(item, float) and not math.isfinite(item) for item in value.values())

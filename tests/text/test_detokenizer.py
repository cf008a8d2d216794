"""Incremental decoding equals decoding everything at once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkinfer.text.detokenizer import Detokenizer
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.text.vocabulary import byte_alphabet

ALPHABET = sorted(byte_alphabet(), key=byte_alphabet().__getitem__)


@pytest.fixture(scope="module")
def byte_tokenizer() -> Tokenizer:
    """Id n is byte n; 256 is the multi-byte token "é", 257 a control token, 258 <think> as control, 259 unused."""
    return Tokenizer.from_metadata({
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*ALPHABET, "Ã©", "<|end|>", "<think>", "[PAD]"],
        "tokenizer.ggml.token_type": [1] * 257 + [3, 3, 5],
        "tokenizer.ggml.merges": ["Ã ©"],
    })


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = Detokenizer(tokenizer)
    return "".join([*map(detokenizer.push, ids), detokenizer.flush()])


INTERESTING_BYTES = st.sampled_from(list(b"A\x80\xbf\xc0\xc3\xe2\xed\xa0\xf0\x9f\xf4\x90\xf5\xff"))
CHUNK = st.one_of(
    st.text(max_size=3).map(lambda text: list(text.encode())),
    st.lists(INTERESTING_BYTES, max_size=4),
    st.sampled_from([[256], [257], [259], [10**6]]),
)


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CHUNK, max_size=8).map(lambda chunks: [i for chunk in chunks for i in chunk]))
def test_pieces_join_to_the_whole(byte_tokenizer: Tokenizer, ids: list[int]) -> None:
    data = b"".join(byte_tokenizer.token_bytes(i) for i in ids if i != 257)
    assert decode(byte_tokenizer, ids) == data.decode("utf-8", "replace")
    assert byte_tokenizer.decode(ids) == data.decode("utf-8", "replace")


def test_characters_appear_when_complete(byte_tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_tokenizer)
    assert [detokenizer.push(byte) for byte in "a😀b".encode()] == ["a", "", "", "", "😀", "b"]
    assert detokenizer.flush() == ""


def test_invalid_bytes_become_replacement_characters(byte_tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_tokenizer)
    assert detokenizer.push(0x80) == "\ufffd"
    assert [detokenizer.push(byte) for byte in (0xF0, 0x9F, 0x41)] == ["", "", "\ufffdA"]
    assert [detokenizer.push(byte) for byte in (0xE2, 0x82)] == ["", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.push(0x42) == "B"


def test_control_tokens_are_skipped_and_markers_are_not(byte_tokenizer: Tokenizer) -> None:
    assert decode(byte_tokenizer, [0x41, 257, 258, 259, 0x42]) == "A<think>B"
    visible = Detokenizer(byte_tokenizer, visible=frozenset({257}))
    assert visible.push(257) == "<|end|>"


def test_a_control_token_inside_a_character_does_not_break_it(byte_tokenizer: Tokenizer) -> None:
    assert decode(byte_tokenizer, [0xC3, 257, 0xA9]) == "é"

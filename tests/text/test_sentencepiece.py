"""SentencePiece BPE from scores against a direct implementation of its rule."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.text.tokenizer import Tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = [
    *"▁abcé", "ab", "bc", "▁a", "abc", "▁ab", "ca", "▁▁", "▁▁▁▁", "cab", "bca", "éa", "▁abc", "aa", "aaa", "ba", "▁b",
]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *PIECES, "<turn>", "  \n"]
TYPES = [2, 3, 3, *[6] * 256, *[1] * len(PIECES), 3, 4]
BYTE_0, PIECE_0 = 3, 3 + 256


def metadata(scores: list[float], **changes: Any) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.scores": [0.0] * PIECE_0 + scores + [0.0, 0.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def greedy_by_score(text: str, scores: list[float]) -> list[int]:
    """Join the adjacent pair whose token has the highest score (leftmost of equals) until no pair is a token."""
    score_of = dict(zip(PIECES, scores))
    symbols = list(text.replace(" ", "▁"))
    while pairs := [
        (-score_of[left + right], i)
        for i, (left, right) in enumerate(itertools.pairwise(symbols))
        if left + right in score_of
    ]:
        _, i = min(pairs)
        symbols[i:i + 2] = [symbols[i] + symbols[i + 1]]
    ids: list[int] = []
    for symbol in symbols:
        if symbol in score_of:
            ids.append(PIECE_0 + PIECES.index(symbol))
        else:
            ids += [BYTE_0 + byte for byte in symbol.encode()]
    return ids


SCORES = st.permutations(range(len(PIECES))).map(lambda ranks: [-float(rank) for rank in ranks])
TEXTS = st.text(alphabet="   aaabbbcccéx\n🦙", max_size=14).filter(lambda text: "  \n" not in text)


@settings(max_examples=600, deadline=None)
@given(SCORES, TEXTS)
def test_equals_greedy_merging_by_score(scores: list[float], text: str) -> None:
    tokenizer = Tokenizer.from_metadata(metadata(scores, add_space_prefix=False))
    assert tokenizer.encode(text) == greedy_by_score(text, scores)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(metadata([-float(i) for i in range(len(PIECES))]))


def test_space_prefix_and_bos_are_the_defaults(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_text_prompt("ab")
    assert ids[0] == 1
    assert b"".join(map(tokenizer.token_bytes, ids[1:])) == b" ab"
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.encode("") == []


def test_space_prefix_can_be_off() -> None:
    plain = Tokenizer.from_metadata(
        metadata([-float(i) for i in range(len(PIECES))], add_space_prefix=False, add_bos_token=False)
    )
    assert b"".join(map(plain.token_bytes, plain.encode_text_prompt("ab"))) == b"ab"
    assert plain.decode(plain.encode(" ab")) == " ab"


def test_bytes_of_each_kind_of_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(TOKENS.index("▁ab")) == b" ab"
    assert tokenizer.token_bytes(BYTE_0 + 0xF0) == b"\xf0"
    assert tokenizer.token_bytes(TOKENS.index("<turn>")) == b"<turn>"
    assert tokenizer.token_bytes(0) == b"<unk>"
    assert tokenizer.decode([0, 1, 2]) == ""


def test_special_texts_are_plain_and_user_defined_ones_are_not(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("<s><turn><unk><0x41>")) == "<s><turn><unk><0x41>"
    assert not {0, 1, 2, TOKENS.index("<turn>"), BYTE_0 + 0x41} & set(tokenizer.encode("<s><turn><unk><0x41>"))
    assert TOKENS.index("  \n") in tokenizer.encode("a  \nb")


def test_characters_without_bytes_become_the_unknown_token() -> None:
    without_bytes = Tokenizer.from_metadata({
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "a", "▁"],
        "tokenizer.ggml.token_type": [2, 1, 1], "tokenizer.ggml.scores": [0.0, -1.0, -2.0],
    })
    assert without_bytes.encode("a🦙") == [2, 1, 0]

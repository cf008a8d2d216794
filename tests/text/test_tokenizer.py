"""The tokenizer against llama.cpp's and tiktoken's ids over real vocabularies, and its promises on any text."""

from __future__ import annotations

import json
import logging
import threading
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from sparkinfer.checkpoint.metadata import MetadataReader
from sparkinfer.errors import CheckpointError
from sparkinfer.text import bpe, pre_tokenizers
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.text.vocabulary import Vocabulary

DATA = Path(__file__).parent.parent / "data"
SMOLLM2_CASES = json.loads((DATA / "tokenizer" / "smollm2_ids.json").read_text())["cases"]
QWEN35_CASES = json.loads((DATA / "tokenizer" / "qwen35_ids.json").read_text())["cases"]

AWKWARD = st.sampled_from([
    "'s", "'LL", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200d", "\ufeff", "\u0301", "e\u0301", "é", "K",
    "ſ", "İ", "ß",
    "٣", "१", "Ⅷ", "½", "1234", "<", "|>", "im_end", "<|im_end|>", "<think>", "\x00", "🦙", "👩‍👩‍👧", "각",
    "กำ", "Ω", "你好", "->", "==", "...", "'", '"', "_", "a", "B", "\u08e9", "\ud7a3", "\U0010ffff", "}\n\n",
])
TEXT = st.lists(AWKWARD | st.text(max_size=6), max_size=12).map("".join)
FIXTURES = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def encode_parsed(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_rendered(tokenizer.special_text.parse(text))


def has_agreed_nfc(text: str) -> bool:
    """The tokenizers library normalises by older Unicode tables than Python; both are NFC elsewhere."""
    return normalizers.NFC().normalize_str(text) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("case", SMOLLM2_CASES, ids=range(len(SMOLLM2_CASES)))
def test_smollm2_ids(smollm2: Tokenizer, case: dict[str, Any]) -> None:
    assert smollm2.encode(case["text"]) == case["ids_no_parse_special"]
    assert encode_parsed(smollm2, case["text"]) == case["ids"]
    assert smollm2.decode(case["ids"], skip_special=False) == case["detok_special"]


@pytest.mark.parametrize("case", QWEN35_CASES, ids=range(len(QWEN35_CASES)))
def test_qwen35_ids(qwen35: Tokenizer, case: dict[str, Any]) -> None:
    assert encode_parsed(qwen35, case["text"]) == case["ids"]


def llama_cpp_cases() -> list[tuple[str, list[int]]]:
    texts = (DATA / "vocab" / "qwen35.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    ids = (DATA / "vocab" / "qwen35.out").read_text().split("\n")
    assert len(texts) == len(ids) == 51
    return [(text, [int(i) for i in line.split()]) for text, line in zip(texts, ids)]


def test_qwen2_vocabulary_ids(qwen2_metadata: dict[str, Any]) -> None:
    """llama.cpp does not normalise to NFC as the model's own tokenizer does: without NFC all strings agree."""
    assert qwen2_metadata["tokenizer.ggml.pre"] == "qwen35"
    vocabulary = Vocabulary.from_metadata(MetadataReader(qwen2_metadata, Path("qwen2.gguf")))
    rules = pre_tokenizers.KNOWN["qwen35"]
    backend = bpe.byte_level_bpe(
        vocabulary, qwen2_metadata["tokenizer.ggml.merges"], pre_tokenizers.PreTokenizer(rules.patterns, nfc=False)
    )
    normalising = Tokenizer.from_metadata(qwen2_metadata)
    for text, ids in llama_cpp_cases():
        assert backend.encode(text).ids == ids
        if unicodedata.is_normalized("NFC", text):
            assert normalising.encode(text) == ids
        else:
            assert normalising.encode(text) == normalising.encode(unicodedata.normalize("NFC", text))


@settings(FIXTURES, max_examples=1500)
@example("\u212b \u0041\u030a")
@given(TEXT)
def test_qwen35_equals_tiktoken(qwen35: Tokenizer, qwen35_reference: Any, text: str) -> None:
    if has_agreed_nfc(text):
        ids = qwen35_reference.encode(text, allowed_special="all")
        assert encode_parsed(qwen35, text) == ids
        assert qwen35.decode(ids, skip_special=False) == unicodedata.normalize("NFC", text)


@pytest.fixture(scope="module")
def smollm2_bytes(smollm2: Tokenizer) -> set[bytes]:
    return {data for i in range(smollm2.vocab_size) if len(data := smollm2.token_bytes(i)) == 1}


@settings(FIXTURES, max_examples=300)
@given(TEXT)
def test_decode_inverts_encode(smollm2: Tokenizer, smollm2_bytes: set[bytes], text: str) -> None:
    known = "".join(char for char in text if all(bytes([byte]) in smollm2_bytes for byte in char.encode()))
    ids = smollm2.encode(known)
    assert smollm2.decode(ids) == known
    assert b"".join(map(smollm2.token_bytes, ids)) == known.encode()


def test_bytes_without_a_token_are_dropped(smollm2: Tokenizer) -> None:
    """SmolLM2 has no token for some control characters; llama.cpp drops them as well."""
    assert smollm2.encode("a\x06b") == [81, 82]


@settings(FIXTURES, max_examples=300)
@given(TEXT)
def test_plain_text_never_becomes_structure(qwen35: Tokenizer, text: str) -> None:
    assert not set(qwen35.vocabulary.structural_ids.values()) & set(qwen35.encode(text))


def test_every_token_has_its_bytes(qwen35: Tokenizer, qwen35_reference: Any) -> None:
    for token, token_id in qwen35_reference._mergeable_ranks.items():
        assert qwen35.token_bytes(token_id) == token
    assert qwen35.token_bytes(248_046) == b"<|im_end|>"


@pytest.mark.parametrize("token_id", [248_319, 248_320, 10**9, -1])
def test_padding_and_foreign_ids_decode_to_nothing(qwen35: Tokenizer, token_id: int) -> None:
    assert qwen35.token_bytes(token_id) == b""
    assert qwen35.decode([token_id]) == ""
    assert qwen35.is_special(token_id) or token_id < qwen35.vocab_size


def test_special_tokens(qwen35: Tokenizer) -> None:
    assert qwen35.stop_token_ids == {248_046, 248_044}
    assert qwen35.vocab_size == 248_320
    assert qwen35.is_special(248_046)
    assert not qwen35.is_special(248_068), "<think> must reach the output parser"
    assert qwen35.decode([9419, 248_046]) == "Hello"
    assert qwen35.decode([9419, 248_046], skip_special=False) == "Hello<|im_end|>"


def test_lone_surrogates_become_replacement_characters(smollm2: Tokenizer) -> None:
    assert smollm2.decode(smollm2.encode("a\ud83db\udc00")) == "a\ufffdb\ufffd"
    assert smollm2.decode(smollm2.encode("\ud83e\udd99")) == "🦙"


def test_encoding_leaves_other_threads_running(smollm2: Tokenizer) -> None:
    """A text that takes some 100 ms is encoded while this thread goes on counting."""
    done = threading.Event()

    def encode() -> None:
        smollm2.encode("some words and 12345 numbers, " * 20_000)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    turns = 0
    while not done.is_set():
        turns += 1
    thread.join()
    assert turns > 100


def tiny_metadata(**changes: Any) -> dict[str, Any]:
    """The byte alphabet, one merge and a few special tokens."""
    tokens = [*pre_tokenizers.pre_tokenizers.ByteLevel.alphabet(), "ab", "<s>", "</s>", "<mark>", "  ", "[PAD7]"]
    size = len(tokens)
    types = [1] * (size - 5) + [3, 3, 4, 4, 5]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": size - 5,
        "tokenizer.ggml.eos_token_id": size - 4,
    } | {f"tokenizer.{key}": value for key, value in changes.items()}


def test_bos_and_eos_follow_the_file() -> None:
    plain = Tokenizer.from_metadata(tiny_metadata())
    bos, eos = plain.options.bos_token_id, plain.options.eos_token_id
    ab = plain.encode("ab")
    assert plain.encode_text_prompt("ab") == ab
    wrapping = {"ggml.add_bos_token": True, "ggml.add_eos_token": True}
    both = Tokenizer.from_metadata(tiny_metadata(**wrapping))
    assert both.encode_text_prompt("ab") == [bos, *ab, eos]
    assert encode_parsed(both, "ab") == [bos, *ab]
    assert encode_parsed(both, "<s>ab") == [bos, *ab], "the template's own BOS is not doubled"
    by_family = Tokenizer.from_metadata(tiny_metadata(**{"ggml.pre": "llama-bpe"}))
    assert by_family.encode_text_prompt("ab") == [bos, *ab]


def test_user_defined_tokens_are_structure_only_if_the_template_writes_them() -> None:
    free = Tokenizer.from_metadata(tiny_metadata())
    mark = free.vocabulary.tokens.index("<mark>")
    blanks = free.vocabulary.tokens.index("  ")
    assert free.encode("a  <mark>") == [*free.encode("a"), blanks, mark]
    bound = Tokenizer.from_metadata(tiny_metadata(chat_template="{{ '<mark>  ' }}"))
    assert mark not in bound.encode("a  <mark>")
    assert blanks in bound.encode("a  <mark>")
    assert encode_parsed(bound, "<mark>") == [mark]


@pytest.mark.parametrize(("pre", "architecture", "fallback"), [
    ("foo", "qwen35", "qwen35"), (None, "llama", "llama-bpe"), ("foo", "unheard-of", "default"),
])
def test_unknown_pre_tokenizer_warns_and_falls_back(
    pre: str | None, architecture: str, fallback: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="sparkinfer.text"):
        assert pre_tokenizers.select(pre, architecture) is pre_tokenizers.KNOWN[fallback]
    assert repr(fallback) in caplog.text
    assert "smollm" in caplog.text, "the known values are listed"


@pytest.mark.parametrize("name", sorted(pre_tokenizers.KNOWN))
def test_every_pre_tokenizer_loses_nothing(name: str) -> None:
    tokenizer = Tokenizer.from_metadata(tiny_metadata(**{"ggml.pre": name}))
    for case in SMOLLM2_CASES:
        assert tokenizer.decode(tokenizer.encode(case["text"])) == (
            unicodedata.normalize("NFC", case["text"]) if pre_tokenizers.KNOWN[name].nfc else case["text"]
        )


@pytest.mark.parametrize(("name", "text", "pieces"), [
    ("gpt-2", "I'll pay 12345!!", ["I", "'ll", " pay", " 12345", "!!"]),
    ("smollm", "x 123", ["x", " ", "1", "2", "3"]),
    ("llama-bpe", "I'LL pay 12345.\n\n", ["I", "'LL", " pay", " ", "123", "45", ".\n\n"]),
    ("qwen2", "a12 \n b", ["a", "1", "2", " \n", " b"]),
    ("qwen2", "ก\u0e33", ["ก\u0e33"]),
    ("qwen2", "क\u093f", ["क", "\u093f"]),
    ("qwen35", "क\u093f", ["क\u093f"]),
    ("gpt-4o", "camelCase's HTTPServer a/b/", ["camel", "Case's", " HTTPServer", " a", "/b", "/"]),
    ("llama4", "12345", ["123", "45"]),
    ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
    ("deepseek-v3", "漢字kana 12345", ["漢字", "kana", " ", "123", "45"]),
    ("default", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
])
def test_pre_tokenizer_cuts(name: str, text: str, pieces: list[str]) -> None:
    spans = pre_tokenizers.KNOWN[name].splitter().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in spans] == pieces


@pytest.mark.parametrize(("changes", "message"), [
    ({"ggml.tokens": []}, "tokenizer.ggml.tokens is missing"),
    ({"ggml.model": "t5"}, "'t5'"),
    ({"ggml.token_type": [1]}, "token_type has 1 entries"),
    ({"ggml.model": "llama"}, "scores has 0 entries"),
])
def test_unusable_vocabularies_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_metadata(tiny_metadata(**changes))


def test_tokenizer_json_replaces_the_vocabulary(smollm2: Tokenizer, tmp_path: Path, smollm2_metadata: Any) -> None:
    definition = json.loads(smollm2._backend.to_str())
    structural = smollm2.vocabulary.structural_ids
    definition["model"]["vocab"] |= structural
    definition["added_tokens"] = [
        {"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for text, i in structural.items()
    ]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(definition))
    replaced = Tokenizer.from_file(path, smollm2_metadata)
    assert replaced.stop_token_ids == smollm2.stop_token_ids
    for case in SMOLLM2_CASES:
        assert replaced.encode(case["text"]) == case["ids_no_parse_special"]
        assert encode_parsed(replaced, case["text"]) == case["ids"]
        assert replaced.decode(case["ids"], skip_special=False) == case["detok_special"]


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"model": {"vocab": {}}}', '{"model": {"vocab": {"a": "x"}}}']
)
def test_unusable_tokenizer_json_is_named(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CheckpointError, match=r"not a usable tokenizer\.json"):
        Tokenizer.from_file(path, {})

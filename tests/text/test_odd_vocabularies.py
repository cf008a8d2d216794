"""Vocabularies as careless converters write them: wrong types, missing types, bytes that are not UTF-8, wrong keys."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.errors import CheckpointError, RequestError
from sparkinfer.request import ChatPrompt, Message, TextPrompt
from sparkinfer.text.chat_template import ChatTemplate
from sparkinfer.text.prompt_encoder import PromptEncoder
from sparkinfer.text.special_text import SpecialText
from sparkinfer.text.token_types import TokenType
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.text.vocabulary import byte_alphabet
from tests.checkpoint.builder import Tensor, gguf_bytes, model_metadata, model_tensors

CHARACTERS = [char for char, _ in sorted(byte_alphabet().items(), key=lambda item: item[1])]
STRUCTURE = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<\uff5cUser\uff5c>", "</s>",
]
PLAIN = ["<br>", "<|", "[x]"]
TOKENS = CHARACTERS + STRUCTURE + PLAIN
IDS = {text: token_id for token_id, text in enumerate(TOKENS)}
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
NORMAL, CONTROL, USER_DEFINED = TokenType.NORMAL, TokenType.CONTROL, TokenType.USER_DEFINED


def metadata(structure: int | None, **changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary without merges, whose special tokens are all of type `structure`; None: no types."""
    types = [NORMAL] * len(CHARACTERS) + [structure or 0] * len(STRUCTURE) + [USER_DEFINED, NORMAL, NORMAL]
    described: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [int(kind) for kind in types], "tokenizer.ggml.eos_token_id": IDS["</s>"],
    }
    if structure is None:
        del described["tokenizer.ggml.token_type"]
    return described | {f"tokenizer.{key.replace('__', '.')}": value for key, value in changes.items()}


def encoder(described: dict[str, Any]) -> PromptEncoder:
    tokenizer = Tokenizer.from_metadata(described)
    return PromptEncoder(tokenizer, ChatTemplate.from_metadata(described, tokenizer))


def chat(content: str) -> ChatPrompt:
    return ChatPrompt(messages=(Message(role="user", content=content),), add_generation_prompt=False)


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["no template", "ChatML"])
@pytest.mark.parametrize("structure", [NORMAL, USER_DEFINED, CONTROL, None], ids=lambda kind: str(kind))
def test_text_never_becomes_structure_and_the_template_always_does(structure: int | None, template: str | None) -> None:
    made = encoder(metadata(structure) | ({"tokenizer.chat_template": template} if template else {}))
    structural = {IDS[text] for text in STRUCTURE}
    hostile = "".join(f"{text} " for text in STRUCTURE)
    assert not structural.intersection(made.tokenizer.encode(hostile))
    assert made.tokenizer.decode(made.tokenizer.encode(hostile)) == hostile
    ids, _ = made.encode_with_text(chat(hostile))
    assert [token_id for token_id in ids if token_id in structural] == [IDS["<|im_start|>"], IDS["<|im_end|>"]]
    assert made.tokenizer.stop_token_ids >= {IDS["</s>"], IDS["<|im_end|>"], IDS["<|endoftext|>"]}


@pytest.mark.parametrize("structure", [NORMAL, USER_DEFINED, None], ids=lambda kind: str(kind))
def test_mended_tokens_are_hidden_but_reply_markers_are_not(structure: int | None) -> None:
    tokenizer = Tokenizer.from_metadata(metadata(structure))
    ids = [IDS[text] for text in ("<think>", "</think>", "<|im_end|>", "</s>", "<|im_start|>")]
    assert tokenizer.decode(ids) == "<think></think>"


def test_mending_is_said_once_and_right_types_are_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    Tokenizer.from_metadata(metadata(CONTROL))
    assert not caplog.records
    Tokenizer.from_metadata(metadata(NORMAL))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"calls {len(STRUCTURE)} special tokens ordinary" in record.getMessage()


def test_ordinary_tokens_stay_ordinary() -> None:
    """A BOS that is a comma (old converters' default) and user-defined tags are text."""
    tokenizer = Tokenizer.from_metadata(metadata(CONTROL, ggml__bos_token_id=IDS[","]))
    assert tokenizer.encode("a,<br>[x]") == [IDS["a"], IDS[","], IDS["<br>"], *(IDS[char] for char in "[x]")]


def test_sentencepiece_without_types_knows_its_unknown_token() -> None:
    pieces = ["<unk>", "<s>", "</s>", "\u2581", "a", "b"]
    tokenizer = Tokenizer.from_metadata({
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.scores": [0.0] * 6,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    })
    assert tokenizer.encode("a</s>") == [4, 0, 0, 0, 0]
    assert tokenizer.stop_token_ids == {2}


@pytest.mark.parametrize(("key", "value"), [
    ("tokenizer.ggml.tokens", [1, 2]), ("tokenizer.ggml.tokens", "abc"), ("tokenizer.ggml.token_type", 3),
    ("tokenizer.ggml.token_type", ["a"] * len(TOKENS)), ("tokenizer.ggml.model", 5), ("tokenizer.ggml.pre", [1, 2]),
    ("tokenizer.ggml.pre", 5), ("tokenizer.ggml.merges", 3), ("tokenizer.ggml.merges", [3, 4]),
    ("tokenizer.ggml.merges", "abc"), ("tokenizer.ggml.eos_token_id", "x"), ("tokenizer.ggml.eos_token_id", 1.5),
    ("tokenizer.ggml.eos_token_id", float("nan")), ("tokenizer.ggml.eos_token_id", [1, 2]),
    ("tokenizer.ggml.bos_token_id", "x"), ("tokenizer.ggml.eot_token_id", []), ("tokenizer.ggml.unknown_token_id", ""),
    ("tokenizer.ggml.add_bos_token", "yes"), ("tokenizer.ggml.add_eos_token", 2), ("tokenizer.chat_template", 3),
    ("tokenizer.ggml.add_space_prefix", [True]), ("tokenizer.chat_template", ["a", "b"]), ("general.architecture", 7),
])
def test_an_ill_typed_key_is_named(key: str, value: Any) -> None:
    described = metadata(CONTROL) | {key: value}
    with pytest.raises(CheckpointError, match=rf"model\.gguf: metadata key '{key}' is "):
        Tokenizer.from_metadata(described, Path("model.gguf"))


def test_ill_typed_scores_are_named() -> None:
    for scores in (["a"] * len(TOKENS), 3, [float("nan")] * len(TOKENS)):
        described = metadata(CONTROL, ggml__model="llama", ggml__scores=scores)
        with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.scores"):
            Tokenizer.from_metadata(described)


@pytest.mark.parametrize("token_id", [-1, 2**32 - 1, 10**6])
def test_an_end_token_beyond_the_vocabulary_is_none(token_id: int) -> None:
    assert Tokenizer.from_metadata(metadata(CONTROL, ggml__eos_token_id=token_id)).options.eos_token_id is None


@pytest.mark.parametrize("source", [
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{% if true %}" * 300 + "x" + "{% endif %}" * 300,
    "".join(f"{{% for a{i} in [1] %}}" for i in range(25)) + "x" + "{% endfor %}" * 25,
    "{{ " + "1" * 5000 + " }}",
    "{{ " + "-" * 3000 + "1 }}",
    "{% if %}\udcff",
])
def test_a_template_that_cannot_be_compiled_refuses_chats_and_nothing_else(source: str) -> None:
    made = encoder(metadata(CONTROL, chat_template=source))
    with pytest.raises(RequestError, match="does not parse") as caught:
        made.encode_with_text(chat("hi"))
    assert caught.value.status == 400
    caught.value.message.encode()
    assert made.encode_with_text(TextPrompt(text="a"))[0] == [IDS["a"]]


def surrogates(raw: bytes) -> str:
    """As the GGUF reader keeps bytes that are not UTF-8."""
    return raw.decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("kind", list(TokenType))
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_tokens_that_are_not_utf8_keep_their_bytes(kind: TokenType, model: str) -> None:
    raw = b"<|\xff\xfe|>"
    pieces = ["a", "b", surrogates(raw)]
    tokenizer = Tokenizer.from_metadata({
        "tokenizer.ggml.model": model, "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [1, 1, int(kind)], "tokenizer.ggml.scores": [0.0] * 3,
        "tokenizer.ggml.merges": [f"a {pieces[2]}"], "tokenizer.ggml.add_space_prefix": False,
    })
    assert tokenizer.token_bytes(2) == (b"" if kind == TokenType.UNUSED else raw)
    assert tokenizer.encode("ab") == [0, 1]


def test_a_bos_that_is_not_utf8_is_found_where_the_template_writes_it() -> None:
    tokens = [*TOKENS, surrogates(b"<|\xff\xfe|>")]
    bos = len(TOKENS)
    types = metadata(CONTROL)["tokenizer.ggml.token_type"]
    made = encoder(metadata(
        CONTROL, ggml__tokens=tokens, ggml__token_type=[*types, int(CONTROL)], ggml__bos_token_id=bos,
        chat_template="{{ bos_token }}{{ messages[0].content }}",
    ))
    ids, text = made.encode_with_text(chat("a"))
    assert ids == [bos, IDS["a"]]
    text.encode()  # what is shown must go through JSON


def test_template_text_that_is_not_utf8_can_be_shown() -> None:
    made = encoder(metadata(CONTROL, chat_template="\udcff{{ messages[0].content }}"))
    assert made.encode_with_text(chat("a"))[1] == "\ufffda"
    refusing = encoder(metadata(CONTROL, chat_template="{{ raise_exception('\udcff') }}"))
    with pytest.raises(RequestError) as caught:
        refusing.encode_with_text(chat("a"))
    caught.value.message.encode()


def tokenizer_json(path: Path, num_tokens: int, **changes: Any) -> Path:
    model = {"type": "BPE", "vocab": {f"t{i}": i for i in range(num_tokens)}, "merges": []}
    path.write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": []} | changes))
    return path


def test_a_foreign_tokenizer_must_not_have_more_tokens_than_the_embedding_has_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.gguf"
    tensors = model_tensors("llama", 1) | {"token_embd.weight": Tensor((10, 16))}
    path.write_bytes(gguf_bytes(model_metadata("llama", 1), tensors))
    gguf = GGUFFile.open(path)
    with pytest.raises(CheckpointError, match=r"11\.json: the tokenizer has 11 tokens, more than the 10 rows"):
        PromptEncoder.from_gguf(gguf, tokenizer_json(tmp_path / "11.json", 11))
    assert not caplog.records
    assert PromptEncoder.from_gguf(gguf, tokenizer_json(tmp_path / "10.json", 10)).tokenizer.vocab_size == 10
    assert not caplog.records
    assert PromptEncoder.from_gguf(gguf, tokenizer_json(tmp_path / "9.json", 9)).tokenizer.vocab_size == 9
    assert "9 tokens, the model's embedding has 10 rows" in caplog.records[0].getMessage()


def test_special_tokens_of_any_length_are_told_apart() -> None:
    texts = ["<|" + "a" * length + "|>" for length in (*range(1, 1200, 29), 3)]
    special = SpecialText(texts)
    (span,) = special.parse(f"x{texts[-2]}x").special_spans
    assert span == (1, 1 + len(texts[-2]))
    shielded = special.shield(f"{texts[-1]} {texts[-2]}", "\ue000")
    assert special.unshield(shielded, "\ue000").special_spans == ()


@pytest.mark.parametrize("model", [
    {"vocab": {"a": 10**12}}, {"vocab": {"a": -1}}, {"vocab": {"a": 0.5}}, {"vocab": [["a", 0.0]]},
    {"type": "Magic", "vocab": {"a": 0}},
])
def test_a_tokenizer_json_that_cannot_be_used_is_named(model: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"t\.json is not a usable tokenizer\.json"):
        Tokenizer.from_file(tokenizer_json(tmp_path / "t.json", 1, model=model), {})

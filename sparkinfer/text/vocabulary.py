"""The tokens of one model: their text, kind and exact bytes. Knows nothing of how text is cut into them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from sparkinfer.checkpoint.metadata import MetadataReader
from sparkinfer.errors import CheckpointError
from sparkinfer.text.token_types import REPLY_MARKERS, TokenType, is_barred, mended_types

_PADDING = re.compile(r"\[PAD\d+\]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: printable Latin-1 as itself, the rest from U+0100 on.

    >>> byte_alphabet()["Ġ"], byte_alphabet()["a"]
    (32, 97)
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = byte_alphabet()
_NAMES = ("bos", "eos", "eot", "eom", "padding")
_NO_ID = 2**32 - 1


def is_unicode(text: str) -> bool:
    """False for text with lone surrogates."""
    return text.isascii() or _SURROGATE.search(text) is None


def token_id_of(reader: MetadataReader, name: str) -> int | None:
    """The id that the file gives to "bos", "eos" ...; None without one (writers have used -1 for that)."""
    token_id = reader.integer(f"tokenizer.ggml.{name}_token_id", -1, low=-(2**31), high=_NO_ID)
    return token_id if 0 <= token_id < _NO_ID else None


def named_ids(reader: MetadataReader) -> tuple[frozenset[int], int | None]:
    """Ids of the tokens that the file names as ends and beginnings, and the one for unknown text."""
    ids = (token_id_of(reader, name) for name in _NAMES)
    return frozenset(token_id for token_id in ids if token_id is not None), token_id_of(reader, "unknown")


@dataclass(frozen=True)
class Vocabulary:
    """tokens[i] is the text of id i as the file stores it, types[i] its TokenType.

    byte_level:  tokens are written in the byte alphabet (BPE); else as text with U+2581 for a space (SentencePiece)
    template:    source of the chat template, "" if none; it decides which user-defined tokens are structure
    """

    tokens: list[str]
    types: list[int]
    byte_level: bool
    template: str = ""

    @classmethod
    def from_metadata(cls, reader: MetadataReader) -> Vocabulary:
        """Raises CheckpointError naming the key that is missing or ill-typed."""
        tokens = reader.texts("tokenizer.ggml.tokens", ())
        if not tokens:
            raise CheckpointError("tokenizer.ggml.tokens is missing: the file has no vocabulary (pass --tokenizer)")
        types = reader.integers("tokenizer.ggml.token_type", (TokenType.NORMAL,) * len(tokens))
        if len(types) != len(tokens):
            raise CheckpointError(
                f"tokenizer.ggml.token_type has {len(types)} entries, tokenizer.ggml.tokens has {len(tokens)}"
            )
        mended = mended_types(tokens, types, *named_ids(reader))
        byte_level = reader.text("tokenizer.ggml.model", "") == "gpt2"
        return cls(tokens, mended, byte_level, reader.text("tokenizer.chat_template", ""))

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def structural_ids(self) -> dict[str, int]:
        """Text -> id of the tokens that no client text may ever become.

        All control tokens, and those user-defined ones that the chat template writes itself (`<think>`, `<tool_call>`),
        a reply is parsed by, or that have the form `<|name|>`. Other user-defined tokens (runs of blanks, HTML tags)
        are ordinary text.
        """
        ids: dict[str, int] = {}
        for token_id, (text, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if text and (kind in (TokenType.CONTROL, TokenType.UNKNOWN) or self._is_structural_text(text, kind)):
                ids.setdefault(text, token_id)
        return ids

    def _is_structural_text(self, text: str, kind: int) -> bool:
        if kind != TokenType.USER_DEFINED or not text.strip() or text.isalnum():
            return False
        return text in REPLY_MARKERS or is_barred(text) or (len(text) > 1 and text in self.template)

    @cached_property
    def added_text_ids(self) -> dict[str, int]:
        """Text -> id of the user-defined tokens that are found in any text before it is cut."""
        structural = self.structural_ids
        return {
            text: token_id
            for token_id, (text, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind == TokenType.USER_DEFINED and text and text not in structural
            and not _PADDING.fullmatch(text) and is_unicode(text)
        }

    @cached_property
    def mergeable_ids(self) -> dict[str, int]:
        """Text -> id of the tokens that plain text may become; the first id wins where a text repeats.

        Tokens whose text is not Unicode cannot be: no text has them as a part.
        """
        kinds = (TokenType.NORMAL, TokenType.BYTE)
        structural = self.structural_ids
        ids: dict[str, int] = {}
        for token_id, (text, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind in kinds and text not in structural and is_unicode(text):
                ids.setdefault(text, token_id)
        return ids | {text: i for text, i in self.added_text_ids.items() if text not in ids}

    def is_special(self, token_id: int) -> bool:
        """Whether the token is left out of decoded text: control tokens, except the markers a reply is parsed by."""
        if not 0 <= token_id < len(self.tokens):
            return True
        hidden = self.types[token_id] in (TokenType.CONTROL, TokenType.UNKNOWN)
        return hidden and self.tokens[token_id] not in REPLY_MARKERS

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that the token stands for; b"" for unused ids and ids beyond the vocabulary."""
        if not 0 <= token_id < len(self.tokens):
            return b""
        text, kind = self.tokens[token_id], self.types[token_id]
        if kind == TokenType.UNUSED or _PADDING.fullmatch(text):
            return b""
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
            return _utf8(text if self.byte_level else text.replace("\u2581", " "))
        return _byte_level_bytes(text) if self.byte_level else _sentencepiece_bytes(text)


def _byte_level_bytes(text: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in text])
    except KeyError:  # a token that is not written in the byte alphabet is its own text
        return _utf8(text)


def _sentencepiece_bytes(text: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else _utf8(text.replace("\u2581", " "))


def _utf8(text: str) -> bytes:
    """Bytes of the file that were not UTF-8, which its reader keeps as lone surrogates, come back as they were."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a UTF-16 pair, as JSON can have it
        return text.encode("utf-8", "replace")

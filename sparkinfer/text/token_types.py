"""What kind each token of a vocabulary is, mended where a file's types cannot be right. Knows texts; never bytes.

Converters have written control tokens as normal or user-defined ones, and old files have no types at all. A client's
text could then become an end-of-turn token, and a template's own markers would be cut like prose. The texts that no
family uses for anything else therefore count for more than the type, as they do in llama.cpp.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from enum import IntEnum

logger = logging.getLogger("sparkinfer.text")

# Tokens that end a reply in the families we serve, whatever the file's own keys say. Llama 3's <|eom_id|> hands over
# to a tool and ends the reply; Muse Glimmer's <|eom|> only ends a segment of it and is not here.
STOP_TEXTS = frozenset({
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|eot|>", "<end_of_turn>", "<|end|>",
})
# Markers that a reply's reader must see, whatever type the file gives them.
REPLY_MARKERS = frozenset({
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
})
_CONTROL_TEXTS = STOP_TEXTS | {
    "<|im_start|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>", "<bos>",
    "<eos>",
}
_BARRED = re.compile(r"<([|\uff5c])[^<>\s]+\1>")  # <|fim_prefix|>; no merge of ordinary text makes one
_BRACKETED = re.compile(r"<\S+>|\[\S+\]")         # what a named token may look like: <s>, [PAD]
_MAX_NAMED_IN_LOG = 8


class TokenType(IntEnum):
    """GGUF's `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def is_barred(text: str) -> bool:
    """Whether the text has the form `<|name|>`, which only structure has.

    >>> is_barred("<|file_sep|>"), is_barred("<|"), is_barred("<b>")
    (True, False, False)
    """
    return _BARRED.fullmatch(text) is not None


def mended_types(
    tokens: Sequence[str], types: Sequence[int], named_ids: Collection[int], unknown_id: int | None = None
) -> list[int]:
    """`types`, with control tokens marked as such where the file calls them normal or user-defined; says so in the log.

    named_ids:   what the file names as BOS, EOS and the like
    unknown_id:  what it names as the token of unknown text
    """
    mended = list(types)
    changed = []
    for token_id, (text, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind not in (TokenType.NORMAL, TokenType.USER_DEFINED) or len(text) < 2:
            continue
        if token_id == unknown_id and _BRACKETED.fullmatch(text):
            mended[token_id] = TokenType.UNKNOWN
        elif text[0] in "<[" or token_id in named_ids:
            mended[token_id] = _mended(text, kind, token_id in named_ids)
        if mended[token_id] != kind:
            changed.append(text)
    if changed:
        shown = ", ".join([*map(repr, changed[:_MAX_NAMED_IN_LOG]), *["..."] * (len(changed) > _MAX_NAMED_IN_LOG)])
        logger.warning(
            "tokenizer.ggml.token_type calls %d special tokens ordinary ones (or is missing): they are treated as "
            "special: %s", len(changed), shown,
        )
    return mended


def _mended(text: str, kind: int, is_named: bool) -> int:
    is_normal = kind == TokenType.NORMAL
    if text in _CONTROL_TEXTS or (is_normal and is_barred(text)):
        return TokenType.CONTROL
    if is_named and text.strip() and (not is_normal or _BRACKETED.fullmatch(text)):
        return TokenType.CONTROL
    return TokenType.USER_DEFINED if is_normal and text in REPLY_MARKERS else kind

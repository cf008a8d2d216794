"""Log probabilities in the two spellings of the OpenAI API. Knows nothing of how they were computed."""

from __future__ import annotations

import codecs
import functools
import math
from collections.abc import Sequence
from typing import Any, Protocol

MIN_LOGPROB = -9999.0  # stands for -inf and NaN, which JSON cannot carry


class TokenLogprob(Protocol):
    """One token with its alternatives, best first: (token id, exact bytes, natural log).

    Only the first token of a prompt has no logprob.
    """

    @property
    def token_id(self) -> int: ...
    @property
    def token(self) -> bytes: ...
    @property
    def logprob(self) -> float | None: ...
    @property
    def top(self) -> Sequence[tuple[int, bytes, float]]: ...
    @property
    def in_text(self) -> bool: ...


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """choices[].logprobs of a chat answer; token_id is an extension."""
    content = []
    for entry in entries:
        item = token_entry(entry.token_id, entry.token, entry.logprob)
        item["top_logprobs"] = [token_entry(*alternative) for alternative in entry.top]
        content.append(item)
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """Builds choices[].logprobs of one completion choice piece by piece; offsets count characters of the text.

    Tokens that the text leaves out are listed under their own names, and take no room in it.
    """

    def __init__(self, start: int) -> None:
        """start: characters of the choice's text before the first token (the echoed prompt)."""
        self._offset = start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def render(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The object for the next `entries`; a token inside a character has the character's own offset."""
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            if entry.in_text:
                self._offset += len(self._decoder.decode(entry.token))
        return {
            "tokens": [_display(entry.token) for entry in entries],
            "token_logprobs": [finite_or_none(entry.logprob) for entry in entries],
            "top_logprobs": [_top_by_token(entry) for entry in entries],
            "text_offset": offsets,
        }


def finite_logprob(value: float) -> float:
    """`value`, or MIN_LOGPROB for NaN and anything below it."""
    return value if math.isfinite(value) and value > MIN_LOGPROB else MIN_LOGPROB


def finite_or_none(value: float | None) -> float | None:
    """The same, where None stays None."""
    return None if value is None else finite_logprob(value)


def token_entry(token_id: int, token: bytes, logprob: float | None) -> dict[str, Any]:
    """One token with its probability, as chat answers spell it."""
    text, data = _spelt(token)
    return {"token": text, "token_id": token_id, "logprob": finite_or_none(logprob), "bytes": data}


@functools.lru_cache(maxsize=4096)
def _spelt(token: bytes) -> tuple[str, list[int]]:
    """Text and bytes; the list is shared and never changed."""
    return token.decode("utf-8", "replace"), list(token)


def _top_by_token(entry: TokenLogprob) -> dict[str, float] | None:
    """Alternatives by text, and the token itself among them."""
    if entry.logprob is None:
        return None
    top = {_display(token): finite_logprob(logprob) for _, token, logprob in reversed(entry.top)}
    top.setdefault(_display(entry.token), finite_logprob(entry.logprob))
    return top


def _display(token: bytes) -> str:
    """The token's text; bytes that are no text are spelled out, so that different tokens stay different keys."""
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)

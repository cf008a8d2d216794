"""Token ids to text, one token at a time. Knows bytes; never markers, stop strings or requests."""

from __future__ import annotations

import codecs

from sparkinfer.text.tokenizer import Tokenizer


class Detokenizer:
    """One sequence's text as it grows.

    What the pushes and the flush return, joined, is the UTF-8 decoding (errors="replace") of all the tokens' bytes: a
    character is held back while its bytes are incomplete (at most 3), an invalid one becomes U+FFFD. Special tokens
    are skipped unless their ids are in `visible`. The text continues a prompt, so a leading blank is kept.
    """

    __slots__ = ("_decoder", "_is_clean", "_tokenizer", "_visible")

    def __init__(self, tokenizer: Tokenizer, visible: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._visible = visible
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_clean = True  # no bytes are held back

    @property
    def is_whole(self) -> bool:
        """No bytes of an unfinished character are held back."""
        return self._is_clean

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes."""
        if self._is_clean:
            text = self._tokenizer.whole_text(token_id)
            if text is not None and (token_id not in self._visible or text):
                return text
        if self._tokenizer.is_special(token_id) and token_id not in self._visible:
            return ""
        text = self._decoder.decode(self._tokenizer.token_bytes(token_id))
        self._is_clean = not self._decoder.getstate()[0]
        return text

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an incomplete character, or nothing."""
        text = self._decoder.decode(b"", final=True)
        self._is_clean = True
        return text

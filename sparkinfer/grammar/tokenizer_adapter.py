"""Our Tokenizer as llguidance wants one: exact bytes, special tokens apart from text. Knows nothing of grammars."""

from __future__ import annotations

from collections.abc import Iterable

from llguidance import LLTokenizer, TokenizerWrapper

from sparkinfer.text.tokenizer import Tokenizer

# Sets of strings whose tokens llguidance looks up at once where a grammar admits the whole set: words, JSON strings and
# prose. A token is in the first set that has it. Grammars treat "<" apart, because markup starts with it, and patterns
# white space and the ends of lines; so do these. The first character stands by itself because what a string may go on
# with is compared in that form alone. Without them a mask takes ten times as long.
_STRING = r'"\\\x00-\x1F\x7F<\x{2028}\x{2029}'
_WORD = rf"{_STRING} \x85\xA0\x{{1680}}\x{{2000}}-\x{{200A}}\x{{202F}}\x{{205F}}\x{{3000}}\x{{FEFF}}"
SLICES = (
    "[0-9A-Za-z][0-9A-Za-z]{0,9}",
    "[ 0-9A-Za-z][ 0-9A-Za-z]{0,9}",
    rf"[^{_WORD}][^{_WORD}]{{0,9}}",
    rf"[^{_STRING}][^{_STRING}]{{0,9}}",
    rf"[^{_WORD}][^{_WORD}]{{0,29}}",
    rf"[^{_STRING}][^{_STRING}]{{0,29}}",
    rf"[^{_STRING}][^{_STRING}]*",
    "[^<][^<]*",
)


class _Wrapper(TokenizerWrapper):
    """The attributes that LLTokenizer reads. Tokens of no bytes are never allowed."""

    def __init__(self, tokens: list[bytes], special_ids: Iterable[int], stop_id: int, tokenizer: Tokenizer | None):
        self.tokens = tokens
        self.special_token_ids = sorted(special_ids)
        self.eos_token_id = stop_id
        self.bos_token_id = None
        self.is_tokenizer_wrapper = True
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        """How the model itself would cut `text`: forced text is given in these tokens."""
        if self._tokenizer is None:
            return list(text.encode() if isinstance(text, str) else text)
        return self._tokenizer.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


def grammar_tokenizer(tokenizer: Tokenizer) -> LLTokenizer:
    """Takes about a second for a quarter of a million tokens, with the GIL held for a part of it."""
    size = tokenizer.vocab_size
    tokens = [tokenizer.token_bytes(token_id) for token_id in range(size)]
    special_ids = special_token_ids(tokenizer)
    stops = sorted(tokenizer.stop_token_ids)
    wrapper = _Wrapper(tokens, special_ids, stops[0], tokenizer)
    return LLTokenizer(wrapper, eos_token=stops, slices=list(SLICES))


def special_token_ids(tokenizer: Tokenizer) -> set[int]:
    """Tokens that are no text."""
    named = {*tokenizer.vocabulary.structural_ids.values(), *tokenizer.stop_token_ids}
    return named | {token_id for token_id in range(tokenizer.vocab_size) if tokenizer.is_special(token_id)}


def byte_tokenizer(special_tokens: Iterable[str]) -> LLTokenizer:
    """The 256 bytes and some special tokens: enough to find out whether a grammar is one."""
    texts = list(dict.fromkeys(special_tokens))
    tokens = [bytes([byte]) for byte in range(256)] + [text.encode() for text in texts] + [b"<end of turn>"]
    return LLTokenizer(_Wrapper(tokens, range(256, len(tokens)), len(tokens) - 1, None), slices=[])

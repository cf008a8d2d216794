"""One answer on its way through a grammar: what may come next, what came. Knows token ids; never rows or requests."""

from __future__ import annotations

from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from sparkinfer.grammar.free_text import FreeTextMasks, Words
from sparkinfer.grammar.output_grammar import OutputGrammar

# Bounds on what a grammar may cost: fuel is llguidance's unit of work, some 50,000 a millisecond when a grammar is
# compiled and 14,000 for a mask; a state of the lexer takes some 800 bytes. What goes beyond is an error of that
# grammar.
LIMITS = LLParserLimits(
    initial_lexer_fuel=4_000_000, step_lexer_fuel=500_000, max_grammar_size=500_000, max_items_in_row=10_000,
    step_max_items=200_000, max_lexer_states=100_000, verbose_errors=False,
)  # fmt: skip


_MAX_REASON = 300  # characters: llguidance may quote the whole grammar


class GrammarError(Exception):
    """A grammar that cannot be compiled, or that cannot go on; the text says why, in llguidance's words."""


class NotAllowedError(GrammarError):
    """A token that the grammar does not allow: a fault of whoever chose it."""


class Matcher:
    """Mutable; one thread at a time. The GIL is free while masks are computed and grammars compiled."""

    def __init__(self, matcher: Any, free_text: FreeTextMasks | None = None, recent: bytes = b"") -> None:
        self._matcher = matcher
        self._free_text = free_text
        self._recent = recent  # text that free_text needs

    @classmethod
    def compile(
        cls, grammar: OutputGrammar, tokenizer: LLTokenizer, free_text: FreeTextMasks | None = None
    ) -> Matcher:
        """A matcher at the start of `grammar`. Raises GrammarError.

        free_text: masks for the grammar's free text, over the same vocabulary; the same as without, but fast
        """
        source = LLMatcher.grammar_from_lark(grammar.lark)
        result = cls(LLMatcher(tokenizer, source, log_level=0, limits=LIMITS), free_text)
        result._check()
        return result

    def copy(self) -> Matcher:
        """Another answer at the same place; cheap."""
        return Matcher(self._matcher.deep_copy(), self._free_text, self._recent)

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        return bool(self._matcher.is_accepting())

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end of the turn may come."""
        return bool(self._matcher.is_stopped())

    def fill(self, words: Words) -> None:
        """Write which tokens may come next, as mask_source.py has them; stop tokens where the answer may end.

        words: contiguous [ceil(vocab_size / 32)] int32 with the tokenizer's vocab_size. Raises GrammarError.
        """
        if self._free_text is None or not self._free_text.fill(words, self._recent, self._matcher.validate_tokens):
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()

    def accept(self, token_id: int) -> None:
        """Take note of the next token. Raises NotAllowedError when the grammar does not allow it, else GrammarError."""
        if not self._matcher.consume_token(token_id):
            if "lexer error" in self._matcher.get_error():
                self._check()
            raise NotAllowedError(f"token {token_id} is not allowed here")
        if self._free_text is not None:
            self._recent = self._free_text.after(self._recent, token_id)

    def takes_whole(self, token_ids: list[int]) -> bool:
        """Whether these tokens are an answer, from here to its end. The matcher is of no use afterwards."""
        return bool(self._matcher.try_consume_tokens(token_ids) == len(token_ids)) and self.is_accepting

    def forced(self) -> list[int]:
        """The tokens that must come next, if the grammar leaves no choice; as the model itself would cut their text."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def _check(self) -> None:
        if self._matcher.is_error():
            reason: str = self._matcher.get_error()
            line = reason.strip().split("\n", 1)[0][:_MAX_REASON]
            raise GrammarError("it is too large" if line.startswith("panic") else line)

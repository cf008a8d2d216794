"""One answer on its way through a grammar: what may come next, what came. Knows token ids; never rows or requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from sparkinfer.grammar.output_grammar import OutputGrammar

Words = npt.NDArray[np.int32]

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

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @classmethod
    def compile(cls, grammar: OutputGrammar, tokenizer: LLTokenizer) -> Matcher:
        """A matcher at the start of `grammar`. Raises GrammarError."""
        source = LLMatcher.grammar_from_lark(grammar.lark)
        result = cls(LLMatcher(tokenizer, source, log_level=0, limits=LIMITS))
        result._check()
        return result

    def copy(self) -> Matcher:
        """Another answer at the same place; cheap."""
        return Matcher(self._matcher.deep_copy())

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
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()

    def accept(self, token_id: int) -> None:
        """Take note of the next token. Raises NotAllowedError when the grammar does not allow it, else GrammarError."""
        if not self._matcher.consume_token(token_id):
            if "lexer error" in self._matcher.get_error():
                self._check()
            raise NotAllowedError(f"token {token_id} is not allowed here")

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

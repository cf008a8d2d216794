"""Definitions tried out before they become a part of anything, on a vocabulary of bytes. Knows notation alone."""

from __future__ import annotations

import functools

import numpy as np

from sparkinfer.grammar.matcher import GrammarError, Matcher
from sparkinfer.grammar.output_grammar import OutputGrammar
from sparkinfer.grammar.pattern import PatternError
from sparkinfer.grammar.tokenizer_adapter import byte_tokenizer

_EMPTY = "NoExtensionBias"  # llguidance's word for a terminal that nothing matches

_byte_tokenizer = byte_tokenizer(())


def is_satisfiable(terminal: str) -> bool:
    """Whether some text matches a terminal's definition; it refers to no other. Raises PatternError: too complex."""
    try:
        matcher = _started(f"start: TEXT\nTEXT: {terminal}")
    except GrammarError as error:
        if _EMPTY in str(error):
            return False
        raise PatternError(f"is too complex to be held ({error})") from error
    return not matcher.is_over or matcher.is_accepting


@functools.lru_cache(256)
def complaint(rule: str) -> str | None:
    """Why the right-hand side of a rule that refers to no other cannot be used; None: it can."""
    try:
        _started(f"start: {rule}")
    except GrammarError as error:
        return str(error)
    return None


def _started(lark: str) -> Matcher:
    matcher = Matcher.compile(OutputGrammar(lark), _byte_tokenizer)
    matcher.fill(np.zeros(-(-_byte_tokenizer.vocab_size // 32), np.int32))
    return matcher

"""Definitions tried out before they become a part of anything, on a vocabulary of bytes. Knows notation alone."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable

import numpy as np
from llguidance import LLTokenizer

from sparkinfer.grammar.matcher import GrammarError, Matcher
from sparkinfer.grammar.output_grammar import OutputGrammar
from sparkinfer.grammar.pattern import PatternError
from sparkinfer.grammar.tokenizer_adapter import byte_tokenizer

MAX_BLANKS = 3
_BLANKS = (" ", "\n", "\t", "\r")
EMPTY = "NoExtensionBias"  # llguidance's word for a terminal that nothing matches

_byte_tokenizer = byte_tokenizer(())


@functools.lru_cache(4096)
def is_satisfiable(terminal: str) -> bool:
    """Whether some text matches a terminal's definition; it refers to no other. Raises PatternError: too complex."""
    try:
        matcher = _started(f"start: TEXT\nTEXT: {terminal}")
    except GrammarError as error:
        if EMPTY in str(error):
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


def possible_beginning(rule: str, texts: Iterable[str]) -> str | None:
    """Which of `texts` a rule's text may begin with, behind a few blanks or none; None also for what is no rule."""
    try:
        waiting = [Matcher.compile(OutputGrammar(f"start: {rule}"), _byte_tokenizer)]
    except GrammarError:
        return None
    for _ in range(MAX_BLANKS + 1):
        for matcher in waiting:
            for text in texts:
                if _takes(matcher, text) is not None:
                    return text
        waiting = [taken for matcher in waiting for blank in _BLANKS if (taken := _takes(matcher, blank)) is not None]
    return None


def _takes(matcher: Matcher, text: str) -> Matcher | None:
    """The matcher behind `text`."""
    copy = matcher.copy()
    try:
        for byte in text.encode():
            copy.accept(byte)
    except GrammarError:
        return None
    return copy


def place_to_blame(grammar: OutputGrammar, tokenizer: LLTokenizer, seconds: float = 1.0) -> str | None:
    """Where the smallest part stands that makes a grammar too complex by itself; None if that does not show in time."""
    rest = grammar.lark.removeprefix("start: ").split("\n", 1)[-1]
    until = time.monotonic() + seconds
    for name, path in reversed(list(grammar.places.items())):
        if time.monotonic() > until:
            return None
        try:
            _started(f"start: {name}\n{rest}", tokenizer)
        except GrammarError:
            return path
    return None


def _started(lark: str, tokenizer: LLTokenizer = _byte_tokenizer) -> Matcher:
    matcher = Matcher.compile(OutputGrammar(lark), tokenizer)
    matcher.fill(np.zeros(-(-tokenizer.vocab_size // 32), np.int32))
    return matcher

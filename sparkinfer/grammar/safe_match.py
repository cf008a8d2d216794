"""Whether text holds a match of a client's pattern, in time that grows with the text alone. Knows no schemas.

Python's own expressions may take for ever; llguidance's automata, which masks are made with, do not.
"""

from __future__ import annotations

import functools

from sparkinfer.grammar import char_set
from sparkinfer.grammar.matcher import GrammarError, Matcher
from sparkinfer.grammar.output_grammar import OutputGrammar
from sparkinfer.grammar.pattern import PatternError, full_match
from sparkinfer.grammar.tokenizer_adapter import byte_tokenizer

_byte_tokenizer = byte_tokenizer(())


def has_match(pattern: str, text: str) -> bool:
    """As re.search. Raises PatternError for a pattern that no grammar could hold either."""
    return all(_matches(term.regex, text) != term.is_negated for term in full_match(pattern, char_set.raw))


def _matches(regex: str, text: str) -> bool:
    start = _start(regex)
    try:
        return start is not None and start.copy().takes_whole(list(text.encode()))
    except UnicodeEncodeError:  # half of a surrogate pair is no character
        return False


@functools.lru_cache(256)
def _start(regex: str) -> Matcher | None:
    """None: nothing matches."""
    try:
        return Matcher.compile(OutputGrammar(f"start: TEXT\nTEXT: /{regex}/"), _byte_tokenizer)
    except GrammarError as error:
        if "NoExtensionBias" in str(error):
            return None
        raise PatternError(f"is too complex: {error}") from error

"""Compiled grammars, kept while there is room. Knows sizes and ages; never what a grammar says."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from sparkinfer.grammar.matcher import Matcher

# What a compiled grammar holds beside its text: parser tables and the lexer's states, which grow as masks are computed.
# Most are there after the first masks; a mask that takes long adds more.
BYTES_PER_CHARACTER = 40
BYTES_PER_GRAMMAR = 256 << 10
BYTES_PER_SLOW_SECOND = 90 << 20
SLOW_MASK_S = 0.005          # of a processor's time, far more than a walk over a vocabulary takes
_SLOW_GRAMMAR_S = 0.05


@dataclass(slots=True, eq=False)
class CompiledGrammar:
    """start is never advanced; every answer takes a copy, which shares the lexer with it."""

    start: Matcher
    approximations: tuple[str, ...]
    num_characters: int          # of the grammar's text
    slow_s: float = 0.0          # spent on slow masks, by all answers together
    has_failed: bool = False     # so will every copy

    @property
    def num_bytes(self) -> int:
        """An estimate."""
        return BYTES_PER_GRAMMAR + BYTES_PER_CHARACTER * self.num_characters + int(BYTES_PER_SLOW_SECOND * self.slow_s)

    @property
    def is_slow(self) -> bool:
        """Whether its masks are better not waited for by others."""
        return self.slow_s > _SLOW_GRAMMAR_S

    def took(self, seconds: float) -> None:
        """Take note of the processor's time that a mask took."""
        if seconds > SLOW_MASK_S:
            self.slow_s += seconds


class GrammarCache:
    """Least recently used ones go first; a grammar larger than the whole cache is not kept, nor one that failed."""

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._grammars: OrderedDict[bytes, CompiledGrammar] = OrderedDict()

    def __len__(self) -> int:
        return len(self._grammars)

    def get(self, key: bytes) -> CompiledGrammar | None:
        grammar = self._grammars.get(key)
        if grammar is None or grammar.has_failed:
            return None
        self._grammars.move_to_end(key)
        return grammar

    def put(self, key: bytes, grammar: CompiledGrammar) -> None:
        """Keep one; it takes the place of another under the same key."""
        self._grammars[key] = grammar
        self._grammars.move_to_end(key)
        self.trim()

    def trim(self) -> None:
        """Let go of what has failed or grown too large, then of the oldest until the rest fits."""
        sizes = {key: len(key) + grammar.num_bytes for key, grammar in self._grammars.items()}
        for key, size in sizes.items():
            if size > self._max_bytes or self._grammars[key].has_failed:
                del self._grammars[key]
        self.num_bytes = sum(sizes[key] for key in self._grammars)
        while self.num_bytes > self._max_bytes:
            oldest, _ = self._grammars.popitem(last=False)
            self.num_bytes -= sizes[oldest]

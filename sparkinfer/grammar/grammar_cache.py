"""Compiled grammars, kept while there is room. Knows sizes and ages; never what a grammar says."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from sparkinfer.grammar.matcher import Matcher

# What a compiled grammar holds beside its text: parser tables and the lexer's states, which grow as it is used.
BYTES_PER_CHARACTER = 40
BYTES_PER_GRAMMAR = 256 << 10


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """start is never advanced; every answer takes a copy."""

    start: Matcher
    approximations: tuple[str, ...]
    num_characters: int               # of the grammar's text

    @property
    def num_bytes(self) -> int:
        """An estimate."""
        return BYTES_PER_GRAMMAR + BYTES_PER_CHARACTER * self.num_characters


class GrammarCache:
    """Least recently used ones go first; a grammar larger than the whole cache is not kept."""

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._grammars: OrderedDict[bytes, CompiledGrammar] = OrderedDict()

    def __len__(self) -> int:
        return len(self._grammars)

    def get(self, key: bytes) -> CompiledGrammar | None:
        grammar = self._grammars.get(key)
        if grammar is not None:
            self._grammars.move_to_end(key)
        return grammar

    def put(self, key: bytes, grammar: CompiledGrammar) -> None:
        if key in self._grammars or len(key) + grammar.num_bytes > self._max_bytes:
            return
        self._grammars[key] = grammar
        self.num_bytes += len(key) + grammar.num_bytes
        while self.num_bytes > self._max_bytes:
            oldest, dropped = self._grammars.popitem(last=False)
            self.num_bytes -= len(oldest) + dropped.num_bytes

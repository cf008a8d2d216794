"""Random answers that a grammar allows: a model without any sense, which takes whatever token the mask offers."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
from llguidance import LLTokenizer

from sparkinfer.grammar.matcher import Matcher
from sparkinfer.grammar.output_grammar import OutputGrammar

CLOSERS = tuple(b'"}]')


class Walker:
    """Walks through grammars over one vocabulary."""

    def __init__(self, tokenizer: LLTokenizer, token_bytes: Callable[[int], bytes], seed: int = 0) -> None:
        self._tokenizer = tokenizer
        self._token_bytes = token_bytes
        self.stops = frozenset(tokenizer.eos_tokens)
        self.rng = random.Random(seed)
        self._words = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)
        self._closers = [t for t in range(tokenizer.vocab_size) if token_bytes(t) in (b'"', b"}", b"]", b'"}', b"\n")]

    def compile(self, grammar: OutputGrammar) -> Matcher:
        return Matcher.compile(grammar, self._tokenizer)

    def allowed(self, matcher: Matcher) -> np.ndarray:
        """Ids of the tokens that may come next, ascending."""
        matcher.fill(self._words)
        return np.flatnonzero(np.unpackbits(self._words.view(np.uint8), bitorder="little"))

    def walk(self, start: Matcher, num_free: int = 40, num_steps: int = 2000) -> list[int] | None:
        """Tokens of one answer, without the one that ends it; None when it did not come to an end.

        After num_free tokens what closes something is taken where it may be. Fails where nothing is allowed.
        """
        matcher, tokens = start.copy(), []
        while len(tokens) < num_steps:
            token = self._choice(self.allowed(matcher), len(tokens) >= num_free)
            if token in self.stops:
                assert matcher.is_accepting
                return tokens
            matcher.accept(token)
            tokens.append(token)
        return None

    def bytes(self, tokens: list[int]) -> bytes:
        return b"".join(self._token_bytes(token) for token in tokens)

    def accepts(self, start: Matcher, tokens: list[int]) -> bool:
        """Whether a whole answer may be these tokens."""
        matcher = start.copy()
        for token in tokens:
            if token not in self.allowed(matcher):
                return False
            matcher.accept(token)
        return matcher.is_accepting

    def _choice(self, allowed: np.ndarray, closes: bool) -> int:
        assert len(allowed), "nothing is allowed"
        known = set(allowed.tolist())
        ends = self.stops & known
        if ends and (closes or self.rng.random() < 0.3):
            return min(ends)
        if closes:
            closers = [token for token in self._closers if token in known]
            if closers and self.rng.random() < 0.9:
                return self.rng.choice(closers)
        others = [token for token in (self.rng.choice(allowed) for _ in range(8)) if token not in self.stops]
        return int(others[0]) if others else int(allowed[0])

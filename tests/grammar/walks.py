"""Random answers that a grammar allows: a model without any sense, which takes whatever token the mask offers."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
from llguidance import LLTokenizer

from sparkinfer.engine.mask_source import allows
from sparkinfer.grammar.matcher import Matcher
from sparkinfer.grammar.output_grammar import OutputGrammar

# Texts that end something: a string, a value, a call, the reasoning.
CLOSING = (
    '"', "}", "]", '"}', "/", "_", "\n", "\n\n", ">", ">\n", "</", "\n</", "parameter", "function", "tool_call", "call",
    "</tool_call>", "</think>",
)  # fmt: skip

VALUE_END = b"\n</parameter>\n</function>\n</tool_call>"


class Walker:
    """Walks through grammars over one vocabulary."""

    def __init__(
        self, tokenizer: LLTokenizer, token_bytes: Callable[[int], bytes], seed: int = 0,
        compile_: Callable[[OutputGrammar], Matcher] | None = None,
    ) -> None:  # fmt: skip
        """compile_: how a grammar becomes a matcher, if not by llguidance alone"""
        self._tokenizer = tokenizer
        self.compile = compile_ or (lambda grammar: Matcher.compile(grammar, tokenizer))
        self._token_bytes = token_bytes
        self.stops = frozenset(tokenizer.eos_tokens)
        self.rng = random.Random(seed)
        self._words = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)
        closing = {text.encode() for text in CLOSING}
        self._closers = [t for t in range(tokenizer.vocab_size) if token_bytes(t) in closing]

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
            matcher.fill(self._words)
            token = self._choice(len(tokens) >= num_free, self.bytes(tokens[-8:]))
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
            matcher.fill(self._words)
            if not allows(self._words, token):
                return False
            matcher.accept(token)
        return matcher.is_accepting

    def _choice(self, closes: bool, tail: bytes) -> int:
        """tail: what was written last."""
        ends = [token for token in self.stops if allows(self._words, token)]
        if ends and (closes or self.rng.random() < 0.3):
            return ends[0]
        if closes and self.rng.random() < 0.9:
            closers = [token for token in self._closers if allows(self._words, token)]
            started = max(n for n in range(len(VALUE_END)) if tail.endswith(VALUE_END[:n]))
            going_on = [t for t in closers if VALUE_END[started:].startswith(self._token_bytes(t))]
            if going_on and self.rng.random() < 0.8:
                return max(going_on, key=lambda token: len(self._token_bytes(token)))
            if closers:
                return self.rng.choice(closers)
        for _ in range(20):
            token = self.rng.randrange(self._tokenizer.vocab_size)
            if allows(self._words, token) and token not in self.stops:
                return token
        allowed = np.flatnonzero(np.unpackbits(self._words.view(np.uint8), bitorder="little"))
        assert len(allowed), "nothing is allowed"
        return int(self.rng.choice([t for t in self.rng.choices(allowed, k=8) if t not in self.stops] or [allowed[0]]))

"""Compiled grammars stay while there is room for them."""

from __future__ import annotations

from sparkinfer.grammar.grammar_cache import BYTES_PER_CHARACTER, BYTES_PER_GRAMMAR, CompiledGrammar, GrammarCache
from sparkinfer.grammar.matcher import Matcher
from sparkinfer.grammar.output_grammar import OutputGrammar
from sparkinfer.grammar.tokenizer_adapter import byte_tokenizer

START = Matcher.compile(OutputGrammar('start: "a"'), byte_tokenizer(()))


def grammar(num_characters: int = 0) -> CompiledGrammar:
    return CompiledGrammar(START, (), num_characters)


def test_the_least_recently_used_goes_first() -> None:
    cache = GrammarCache(3 * BYTES_PER_GRAMMAR + 30)
    for key in (b"a", b"b", b"c"):
        cache.put(key, grammar())
    assert cache.get(b"a") is not None
    cache.put(b"d", grammar())
    assert [key for key in (b"a", b"b", b"c", b"d") if cache.get(key) is not None] == [b"a", b"c", b"d"]
    assert cache.num_bytes == 3 * (BYTES_PER_GRAMMAR + 1)


def test_what_is_larger_than_everything_is_not_kept() -> None:
    cache = GrammarCache(2 * BYTES_PER_GRAMMAR)
    cache.put(b"small", grammar())
    cache.put(b"large", grammar(10**6))
    assert len(cache) == 1
    assert cache.get(b"large") is None
    assert GrammarCache(0).get(b"x") is None


def test_putting_twice_counts_once() -> None:
    cache = GrammarCache(10 * BYTES_PER_GRAMMAR)
    cache.put(b"a", grammar())
    cache.put(b"a", grammar(100))
    assert (len(cache), cache.num_bytes) == (1, BYTES_PER_GRAMMAR + BYTES_PER_CHARACTER * 100 + 1)


def test_what_grew_or_failed_goes() -> None:
    cache = GrammarCache(10 * BYTES_PER_GRAMMAR)
    grammars = {key: grammar() for key in (b"a", b"b", b"c", b"d")}
    for key, value in grammars.items():
        cache.put(key, value)
    grammars[b"a"].took(0.001)
    grammars[b"b"].took(10.0)
    grammars[b"c"].has_failed = True
    assert cache.get(b"c") is None
    assert [value.is_slow for value in grammars.values()] == [False, True, False, False]
    cache.trim()
    assert [key for key in grammars if cache.get(key) is not None] == [b"a", b"d"]
    assert cache.num_bytes == 2 * (BYTES_PER_GRAMMAR + 1)
    cache.put(b"c", grammar())
    assert cache.get(b"c") is not None

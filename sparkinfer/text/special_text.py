"""Tells the template's special tokens from the same text in a client's strings. Knows texts; never ids or templates.

A sentinel character that occurs nowhere in the input is put into every client string wherever it spells a special
token, or could become part of one together with its surroundings. In the rendered prompt, a special token without a
sentinel is therefore the template's own; afterwards the sentinels are taken out again, so that text on both sides of
them is still encoded as one run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sparkinfer.errors import RequestError

# Unicode noncharacters first: they are never text. The private use area is the reserve against hostile input.
_SENTINELS = [*map(chr, range(0xFDD0, 0xFDF0)), *map(chr, range(0xE000, 0xF900))]
_MAX_TRIE_DEPTH = 128  # Python's regular expressions nest no deeper than its stack; no model has tokens that long


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """text: what a person would read. special_spans: [start, end) of the special tokens that are meant as such."""

    text: str
    special_spans: tuple[tuple[int, int], ...] = ()


class SpecialText:
    """The special tokens' texts of one vocabulary; a text of a single character is never special."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(text for text in texts if len(text) > 1)
        trie = _trie_pattern(self._texts) if self._texts else r"(?!)"
        self._pattern = re.compile(trie)
        self._first_char = re.compile(rf"(?={trie}).", re.DOTALL)  # overlapping tokens too
        self._heads = frozenset(text[:i] for text in self._texts for i in range(1, len(text)))
        self._tails = frozenset(text[i:] for text in self._texts for i in range(1, len(text)))
        self._head_ends = frozenset(head[-1] for head in self._heads)
        self._tail_starts = frozenset(tail[0] for tail in self._tails)
        self._longest = max(map(len, self._texts), default=0)

    def parse(self, text: str) -> RenderedPrompt:
        """Trusted text: every special token in it counts."""
        return RenderedPrompt(text, tuple(match.span() for match in self._pattern.finditer(text)))

    def shield(self, value: Any, sentinel: str) -> Any:
        """`value` with every string in it (dict keys too) made unable to spell a special token."""
        if isinstance(value, str):
            return self._shield_text(value, sentinel)
        if isinstance(value, dict):
            return {self.shield(key, sentinel): self.shield(item, sentinel) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.shield(item, sentinel) for item in value]
        return value

    def unshield(self, marked: str, sentinel: str) -> RenderedPrompt:
        """The rendered prompt without sentinels; only special tokens without one keep their meaning."""
        pieces = marked.replace(json_escape(sentinel), sentinel).split(sentinel)
        if len(pieces) == 1:
            return self.parse(marked)
        spans, offset = [], 0
        for piece in pieces:
            spans += [(offset + m.start(), offset + m.end()) for m in self._pattern.finditer(piece)]
            offset += len(piece)
        return RenderedPrompt("".join(pieces), tuple(spans))

    def _shield_text(self, text: str, sentinel: str) -> str:
        if self._pattern.search(text):
            text = self._first_char.sub(lambda match: match[0] + sentinel, text)
        core = text.strip()
        is_inner = 1 < len(core) < self._longest and any(core in special for special in self._texts)
        before, after = is_inner or self._could_continue(core), is_inner or self._could_begin(core)
        if not (before or after):
            return text
        lead = len(text) - len(text.lstrip())
        end = lead + len(core)
        return text[:lead] + sentinel * before + core + sentinel * after + text[end:]

    def _could_begin(self, core: str) -> bool:
        """Whether a special token could start in `core` and end in what follows it."""
        if core[-1:] not in self._head_ends:
            return False
        return any(core[-n:] in self._heads for n in range(1, min(self._longest, len(core) + 1)))

    def _could_continue(self, core: str) -> bool:
        if core[:1] not in self._tail_starts:
            return False
        return any(core[:n] in self._tails for n in range(1, min(self._longest, len(core) + 1)))


def choose_sentinels(count: int, values: Any) -> list[str]:
    """Characters that occur in none of the strings inside `values`, neither as themselves nor as JSON escapes."""
    text = "\0".join(_strings(values))
    unused = (char for char in _SENTINELS if char not in text and json_escape(char) not in text)
    sentinels = list(itertools.islice(unused, count))
    if len(sentinels) < count:
        raise RequestError(400, "The messages use every private-use character that exists.", param="messages")
    return sentinels


def json_escape(sentinel: str) -> str:
    """The sentinel as a template writes it that asks tojson for ASCII."""
    return f"\\u{ord(sentinel):04x}"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _trie_pattern(texts: Collection[str]) -> str:
    """A regular expression that matches the longest of `texts`, in time independent of how many there are."""
    if any(len(text) > _MAX_TRIE_DEPTH for text in texts):
        return f"(?:{'|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))})"
    trie: dict[str, Any] = {}
    for text in texts:
        node = trie
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return _trie_node_pattern(trie)


def _trie_node_pattern(node: dict[str, Any]) -> str:
    prefix = ""
    while len(node) == 1 and "" not in node:
        char, node = next(iter(node.items()))
        prefix += re.escape(char)
    branches = [re.escape(char) + _trie_node_pattern(child) for char, child in sorted(node.items()) if char]
    if not branches:
        return prefix
    group = f"(?:{'|'.join(branches)})"
    return prefix + (group + "?" if "" in node else group)

"""Masks inside free text: text of which a grammar says only what markup it must not have, and how long it may be.

llguidance tries every token of the vocabulary behind a "<" in such text, and up to its end where its length is limited.
What it would find follows from the tokens' texts, but for a few tokens that may end the text, which it is asked about.
Whether the answer is inside free text, and how many more characters that may have, is asked by a character that
nothing else in a grammar admits. Knows tokens and markup; never a grammar's text.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkinfer.grammar.output_grammar import PROBE, FreeText

Words = npt.NDArray[np.int32]
Validate = Callable[[list[int]], int]  # how many of some tokens may come next, one after the other

_RESTS = (b"", b"\x80", b"\xbf", b"\x80\x80", b"\xbf\xbf", b"\xbf\xbf\xbf", b"\x80\x80\x80")  # end any character


class TokenTexts:
    """The texts of a vocabulary. Takes about half a second for a quarter of a million tokens."""

    def __init__(self, texts: Sequence[bytes], special_ids: Collection[int]) -> None:
        """special_ids: those that are no text"""
        self.texts = [b"" if token_id in special_ids else text for token_id, text in enumerate(texts)]
        self.special_ids = sorted(special_ids)
        self.num_chars = np.array([_num_chars(text) for text in self.texts], np.int16)
        self.longest = int(self.num_chars.max(initial=1))
        self.with_sign = [token_id for token_id, text in enumerate(self.texts) if b"<" in text]
        self._in_order = sorted(range(len(self.texts)), key=self.texts.__getitem__)
        self._sorted = [self.texts[token_id] for token_id in self._in_order]
        self._bytes = {text[0]: token_id for token_id, text in enumerate(self.texts) if len(text) == 1}

    def starting_with(self, text: bytes) -> list[int]:
        """Ids of the tokens whose texts begin with `text`, which is not empty and ASCII; in order of text."""
        above = text[:-1] + bytes([text[-1] + 1])
        return self._in_order[bisect_left(self._sorted, text):bisect_left(self._sorted, above)]

    def spelled(self, text: bytes) -> list[int]:
        """`text` by tokens of one byte each; [] if the vocabulary has not all of them."""
        return [self._bytes[byte] for byte in text] if all(byte in self._bytes for byte in text) else []

    def words(self, is_in: npt.NDArray[np.bool_]) -> Words:
        """A set of tokens as a mask."""
        padded = np.zeros(-(-len(self.texts) // 32) * 32, np.bool_)
        padded[: len(is_in)] = is_in
        return np.packbits(padded, bitorder="little").view(np.int32)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a text one is: what may come for certain, and tokens that have to be tried besides.

    groups: more of these that begin in the same way, which is spelled before each
    """

    words: Words
    doubtful: list[int]
    groups: tuple[tuple[list[int], list[int]], ...] = ()


class FreeTextMasks:
    """Those of one form of text over one vocabulary, for any number of grammars and threads.

    Has a mask for each beginning of a tag, and one for each number of characters that is smaller than some token's.
    """

    def __init__(self, texts: TokenTexts, form: FreeText) -> None:
        self._texts = texts
        self._markup = [text.encode() for text in form.markup]
        self._beginnings = frozenset(text[:n] for text in self._markup for n in range(1, len(text)))
        self._max_tail = max(map(len, self._beginnings), default=1)
        self._with_markup = [i for i in texts.with_sign if any(tag in texts.texts[i] for tag in self._markup)]
        self._end = form.end.encode()
        self._probes = texts.spelled(PROBE.encode()) * texts.longest
        self._enders = list(self._find_enders()) if self._end else []
        self._places = {tail: self._place(tail) for tail in (b"", *self._beginnings)}
        self._edges = {room: self._edge(room) for room in range(1, texts.longest)} if self._end else {}

    def after(self, recent: bytes, token_id: int) -> bytes:
        """What has to be known of an answer's text once a token has come; recent: what was known before."""
        text = self._texts.texts[token_id]
        return (recent + text)[-self._max_tail:] if text else b""

    def fill(self, words: Words, recent: bytes, validate: Validate) -> bool:
        """Write a mask; False where that is for llguidance to do, which is as fast there."""
        start = recent.rfind(b"<")
        tail = recent[start:] if start >= 0 and recent[start:] in self._beginnings else b""
        room = validate(self._probes) if tail or self._end else 0
        place, edge = self._places[tail], self._edges.get(room)
        if edge is not None:
            np.bitwise_and(place.words, edge.words, out=words)
            doubtful = place.doubtful + edge.doubtful
        elif room == self._texts.longest:
            np.copyto(words, place.words)
            doubtful = place.doubtful
        else:
            return False
        octets = words.data.cast("B")
        for spelled, token_ids in (([], doubtful), *place.groups):
            if validate(spelled) == len(spelled):
                for token_id in token_ids:
                    if validate([token_id]):
                        octets[token_id >> 3] |= 1 << (token_id & 7)  # little-endian
        return True

    def _find_enders(self) -> Iterator[tuple[int, int]]:
        """Tokens that may lead from a text into its end, or on in it, with their characters before the end."""
        size = len(self._end)
        parts = {self._end[i:j] for i in range(size) for j in range(i + 1, size + 1)}
        beginnings = tuple(self._end[:n] for n in range(size - 1, 0, -1))
        for token_id, text in enumerate(self._texts.texts):
            if text in parts:
                yield token_id, 0
            elif text.endswith(beginnings):
                overlap = next(len(beginning) for beginning in beginnings if text.endswith(beginning))
                yield token_id, int(self._texts.num_chars[token_id]) - overlap

    def _place(self, tail: bytes) -> _Place:
        """Behind `tail`, which may be the beginning of a tag."""
        texts = self._texts
        doubtful = [*texts.special_ids, *self._with_markup]
        groups = []
        for rest in [tag[len(tail):] for tag in self._markup if tail and tag.startswith(tail)]:
            by_text: dict[bytes, list[int]] = {}
            for token_id in texts.starting_with(rest):
                by_text.setdefault(texts.texts[token_id][: len(rest) + 1], []).append(token_id)
            groups += [(texts.spelled(text), token_ids) for text, token_ids in by_text.items()]
        is_in = texts.num_chars > 0
        is_in[[*doubtful, *(token_id for _, token_ids in groups for token_id in token_ids)]] = False
        return _Place(texts.words(is_in), doubtful, tuple(groups))

    def _edge(self, room: int) -> _Place:
        """Where the text may go on for `room` characters. What has more of them may hold its end, or a part of that."""
        num_chars = self._texts.num_chars
        doubtful = [token_id for token_id, needed in self._enders if needed <= room < num_chars[token_id]]
        return _Place(self._texts.words(num_chars <= room), doubtful)


class FreeTexts:
    """One vocabulary's masks, by the form of text."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._masks: dict[FreeText, FreeTextMasks] = {}

    def masks(self, form: FreeText | None) -> FreeTextMasks | None:
        if form is None:
            return None
        return self._masks.get(form) or self._masks.setdefault(form, FreeTextMasks(self._texts, form))


def _num_chars(text: bytes) -> int:
    """Characters of which a text has at least the first byte; 0 if it cannot stand behind a whole character."""
    for rest in _RESTS:
        with contextlib.suppress(UnicodeDecodeError):
            return len((text + rest).decode())
    return 0

"""Scores of a prompt on their way to its client: paired with the prompt's text. Knows tokens; never rings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from ipc.token_frame import SCORES, TokenRecord, unpack
from sparkinfer.request import RequestId
from sparkinfer.text.choice_stream import ChoiceStream, StreamOptions, TextDelta
from sparkinfer.text.entry_pairing import TokenEntry
from sparkinfer.text.tokenizer import Tokenizer


class ScoredPrompt:
    """The part of a prompt that is scored for one choice, from position `first` on."""

    def __init__(self, tokenizer: Tokenizer, token_ids: list[int], first: int) -> None:
        self._stream = ChoiceStream(tokenizer, StreamOptions())
        self._unpredicted = token_ids[:1] if first == 0 else []
        self._num_left = len(token_ids) - first

    def start(self) -> list[TextDelta]:
        """The first token of all, which nothing predicts; nothing when it is not wanted."""
        return self.push([TokenEntry(token_id, None, ()) for token_id in self._unpredicted])

    def push(self, entries: Iterable[TokenEntry]) -> list[TextDelta]:
        """The next tokens; what may be shown of them."""
        for entry in entries:
            self._stream.push(entry.token_id, entry)
            self._num_left -= 1
        deltas = self._stream.finish() if self._num_left == 0 and not self._stream.is_finished else self._stream.take()
        return [delta._replace(num_tokens=0) for delta in deltas if delta.entries or delta.content]


def scores_of(frame: bytes) -> Iterator[tuple[RequestId, int, list[TokenEntry]]]:
    """(request, choice, entries) of a frame of SCORES."""
    owner = itemgetter(0, 1)
    for (request_id, choice), records in groupby(unpack(frame, SCORES), owner):
        yield RequestId(request_id), choice, [_entry(record) for record in records]


def _entry(record: TokenRecord) -> TokenEntry:
    _, _, token_id, logprob, top = record
    return TokenEntry(token_id, logprob, top)

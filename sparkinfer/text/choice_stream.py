"""One choice's way from token ids to text: detokenise, split off reasoning, filter content, pair logprobs with text.

Pure state, one instance a choice, owned by the text worker. Knows tokens and text; never processes or APIs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from sparkinfer.errors import RequestError
from sparkinfer.request import ToolCallDelta
from sparkinfer.text.content_filter import ContentFilter, ContentOptions
from sparkinfer.text.detokenizer import Detokenizer
from sparkinfer.text.entry_pairing import EntryPairing, TokenEntry
from sparkinfer.text.output_parser import OutputParser
from sparkinfer.text.segment_parser import SEGMENT_MARKERS, SegmentParser
from sparkinfer.text.tokenizer import Tokenizer


class TextDelta(NamedTuple):
    """What a step added to one choice. With entries the text is of one kind, and theirs."""

    content: str
    reasoning: str
    num_tokens: int
    entries: list[TokenEntry]
    tool_calls: Sequence[ToolCallDelta] = ()  # behind the content


class ReplyFormat(Enum):
    """How a model marks its reasoning."""

    PLAIN = auto()     # not at all
    THINK = auto()     # <think> ... </think>, then content
    SEGMENTS = auto()  # segments addressed to the model itself or to the user (Muse Glimmer)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a choice's tokens become text."""

    content: ContentOptions = field(default_factory=ContentOptions)  # stop strings, calls, form: never of reasoning
    reply_format: ReplyFormat = ReplyFormat.PLAIN
    starts_in_reasoning: bool = False  # THINK: the prompt already opened the section


class ChoiceStream:
    """Feed tokens with `push`, collect text with `take`, end with `finish`.

    After a stop string matched (`stop_string` is set) or the model broke the rules of its calls (`failure` is set)
    further tokens are ignored. The result does not depend on how often `take` is called.
    """

    def __init__(self, tokenizer: Tokenizer, options: StreamOptions) -> None:
        self._detokenizer = Detokenizer(tokenizer, _visible_ids(tokenizer, options.reply_format))
        self._parser = _parser(options)
        self._filter = ContentFilter(options.content)
        self._pairing: EntryPairing | None = None  # from the first token with an entry on
        self._content = ""
        self._reasoning = ""
        self._tool_calls: list[ToolCallDelta] = []
        self._fresh_tokens = 0
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self.is_finished = False

    @property
    def has_ended(self) -> bool:
        """Further tokens are ignored."""
        return self._filter.has_ended

    @property
    def stop_string(self) -> str | None:
        return self._filter.stop_string

    @property
    def failure(self) -> RequestError | None:
        """Why the answer cannot be passed on; what was shown of it stays shown."""
        return self._filter.failure

    @property
    def num_calls(self) -> int:
        """Complete calls so far."""
        return self._filter.num_calls

    def push(self, token_id: int, entry: TokenEntry | None = None) -> None:
        """Account for one generated token."""
        if self._filter.has_ended:
            return
        self.num_tokens += 1
        self._fresh_tokens += 1
        in_reasoning = self._parser is not None and self._parser.in_reasoning
        self.num_reasoning_tokens += in_reasoning
        text = self._detokenizer.push(token_id)
        if entry is not None:
            self._pair(entry, text, in_reasoning)
        elif text:
            self._add(text)

    def take(self) -> list[TextDelta]:
        """Text since the last call, nothing when nothing may be shown yet."""
        if self._pairing is not None:
            return self._deltas(self._pairing, is_last=False)
        if not (self._content or self._reasoning or self._tool_calls):
            return []
        return [self._delta()]

    def finish(self, *, is_complete: bool = True) -> list[TextDelta]:
        """Release what was held back (half a character, half a marker, half a stop string) and close the stream.

        is_complete: the model ended its answer, and no limit did
        """
        self.is_finished = True
        if not self._filter.has_ended:
            tail = self._detokenizer.flush()
            if self._pairing is not None:
                self._pairing.tail(tail)
            if tail:
                self._add(tail)
        if not self._filter.has_ended:
            self._flush_parsers(is_complete)
        if self._pairing is not None:
            self._show(self._pairing)
            return self._deltas(self._pairing, is_last=True)
        return [self._delta()] if self._content or self._reasoning or self._tool_calls or self._fresh_tokens else []

    def _pair(self, entry: TokenEntry, text: str, in_reasoning: bool) -> None:
        """As `push`, keeping track of which entry belongs to which text."""
        pairing = self._pairing = self._pairing or EntryPairing()
        pairing.token(entry, text, is_whole=self._detokenizer.is_whole, in_reasoning=in_reasoning)
        if text:
            self._add(text)
        if self.stop_string is not None:
            pairing.drop_last()
        self._show(pairing)

    def _show(self, pairing: EntryPairing) -> None:
        pairing.text(self._content, self._reasoning)
        pairing.calls(self._tool_calls)
        self._content, self._reasoning, self._tool_calls = "", "", []
        pairing.settle(self._filter.num_held + (self._parser.num_held if self._parser is not None else 0))

    def _deltas(self, pairing: EntryPairing, *, is_last: bool) -> list[TextDelta]:
        deltas = []
        for segment in pairing.finish() if is_last else pairing.take():
            content, reasoning = ("", segment.text) if segment.is_reasoning else (segment.text, "")
            deltas.append(TextDelta(content, reasoning, self._fresh_tokens, segment.entries, segment.tool_calls))
            self._fresh_tokens = 0
        return [*deltas, self._delta()] if is_last and self._fresh_tokens else deltas

    def _delta(self) -> TextDelta:
        delta = TextDelta(self._content, self._reasoning, self._fresh_tokens, [], self._tool_calls)
        self._content, self._reasoning, self._tool_calls, self._fresh_tokens = "", "", [], 0
        return delta

    def _add(self, text: str) -> None:
        if self._parser is None:
            self._add_content(text)
            return
        reasoning, content = self._parser.push(text)
        self._reasoning += reasoning
        if content:
            self._add_content(content)

    def _add_content(self, content: str) -> None:
        if self._filter.is_idle:
            self._content += content
            return
        self._content += self._filter.push(content)
        self._tool_calls += self._filter.take_calls()

    def _flush_parsers(self, is_complete: bool) -> None:
        if self._parser is not None:
            reasoning, content = self._parser.flush()
            self._reasoning += reasoning
            if content:
                self._add_content(content)
        self._content += self._filter.flush(is_complete=is_complete)


def _parser(options: StreamOptions) -> OutputParser | SegmentParser | None:
    match options.reply_format:
        case ReplyFormat.THINK:
            return OutputParser(options.starts_in_reasoning)
        case ReplyFormat.SEGMENTS:
            return SegmentParser()
        case ReplyFormat.PLAIN:
            return None


def _visible_ids(tokenizer: Tokenizer, reply_format: ReplyFormat) -> frozenset[int]:
    """Control tokens that the parser must see in the text."""
    if reply_format is not ReplyFormat.SEGMENTS:
        return frozenset()
    ids = tokenizer.vocabulary.structural_ids
    return frozenset(ids[marker] for marker in SEGMENT_MARKERS if marker in ids)

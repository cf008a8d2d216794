"""Members of an object in order, with commas where they belong. Knows notation; never schemas.

Rules are kept flat: llguidance recurses over chains of rules, and an object may have thousands of properties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

MAX_COUNTED = 64         # members of an object whose number is limited
_BLOCK = 32              # members that share a rule

Helper = Callable[[str], str]  # makes a rule of a text; its name


class Member(NamedTuple):
    """A name and its value, as text of a rule."""

    text: str
    is_required: bool


def sequence_text(helper: Helper, members: Sequence[Member], extra: str, is_empty_allowed: bool) -> str:
    """All members in order, those that are not required if at all, then any number of `extra` ("": none)."""
    end = f"(JSON_COMMA {extra})*" if extra else ""
    later = [_behind_comma(helper, member) for member in members]
    blocks = [later[i : i + _BLOCK] for i in range(0, len(later), _BLOCK)]
    after = {len(blocks): end}  # what may follow the blocks before this one
    for number in range(len(blocks) - 1, 0, -1):
        after[number] = helper(f"{' '.join(blocks[number])} {after[number + 1]}")
    firsts = []
    for i, member in enumerate(members):
        number, place = divmod(i, _BLOCK)
        rest = " ".join(blocks[number][place + 1 :])
        firsts.append(f"{member.text} {rest} {after[number + 1]}")
        if member.is_required:
            return f"({' | '.join(firsts)})"
    if extra:
        firsts.append(f"{extra} {end}")
    text = f"({' | '.join(firsts)})" if firsts else ""
    return f"{text}?" if text and is_empty_allowed else text


def _behind_comma(helper: Helper, member: Member) -> str:
    return f"JSON_COMMA {member.text}" if member.is_required else helper(f"(JSON_COMMA {member.text})?")


class CountedSequence:
    """As sequence_text, where at least and at most so many members have to be there: rules by place and number."""

    def __init__(
        self, helper: Helper, members: Sequence[Member], extra: str, limits: tuple[int, int | None]
    ) -> None:
        self._helper = helper
        self._members = members
        self._extra = extra
        self._least, self._most = limits
        self._names: dict[tuple[int, int], str] = {}
        self._required_after = [sum(m.is_required for m in members[i:]) for i in range(len(members) + 1)]

    def text(self) -> str:
        for place in range(len(self._members) - 1, 0, -1):
            for written in range(place + 1):
                if self._can(place, written):
                    self._names[place, written] = self._helper(self._from(place, written))
        return self._from(0, 0)

    def _from(self, place: int, written: int) -> str:
        """What may come from a place on, after so many members."""
        if place == len(self._members):
            return self._end(written)
        member = self._members[place]
        comma = "JSON_COMMA " if written else ""
        choices = []
        if self._can(place + 1, written + 1):
            choices.append(f"{comma}{member.text} {self._next(place + 1, written + 1)}")
        if not member.is_required and self._can(place + 1, written):
            choices.append(self._next(place + 1, written) or '""')
        return f"({' | '.join(choices)})"

    def _next(self, place: int, written: int) -> str:
        return self._end(written) if place == len(self._members) else self._names[place, written]

    def _can(self, place: int, written: int) -> bool:
        """Whether the number of members can still come out right."""
        if self._most is not None and written + self._required_after[place] > self._most:
            return False
        return bool(self._extra) or written + len(self._members) - place >= self._least

    def _end(self, written: int) -> str:
        low = max(0, self._least - written)
        high = None if self._most is None else self._most - written
        if not self._extra or high == 0:
            return ""
        if written:
            return repeated(f"JSON_COMMA {self._extra}", low, high)
        others = (max(0, low - 1), None if high is None else high - 1)
        more = f"{self._extra} {repeated(f'JSON_COMMA {self._extra}', *others)}"
        return more if low else f"({more})?"


def repeated(text: str, low: int, high: int | None) -> str:
    """`text` from low to high times; None: without end.

    >>> repeated("a", 0, None), repeated("a", 2, None), repeated("a", 0, 3), repeated("a", 0, 0)
    ('(a)*', '(a){2,}', '(a){0,3}', '')
    """
    if high == 0:
        return ""
    if high is None:
        return f"({text}){{{low},}}" if low else f"({text})*"
    return f"({text}){{{low},{high}}}"

"""Calls of earlier turns that were found right, so that a conversation's next turn has only its new ones checked.

Knows digests of schemas and arguments; never what they say.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from sparkinfer.grammar.grammar_spec import CallCheck

MAX_CALLS = 16_384  # of 32 bytes each and what a dictionary adds


class KnownCalls:
    """The calls that were seen last, whoever made them."""

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def others(self, check: CallCheck) -> CallCheck | None:
        """What is left to check, None if nothing is; schemas that nothing needs are replaced, numbers stay."""
        calls = []
        for call, digest in zip(check.calls, _digests(check)):
            if digest in self._digests:
                self._digests.move_to_end(digest)
            else:
                calls.append(call)
        if not calls:
            return None
        needed = {number for _, number, _ in calls}
        return CallCheck(tuple(s if i in needed else "true" for i, s in enumerate(check.schemas)), tuple(calls))

    def add(self, check: CallCheck) -> None:
        """These were found right."""
        for digest in _digests(check):
            self._digests[digest] = None
        while len(self._digests) > MAX_CALLS:
            self._digests.popitem(last=False)


def _digests(check: CallCheck) -> list[bytes]:
    schemas = {number: _digest(check.schemas[number].encode()) for _, number, _ in check.calls}
    return [_digest(schemas[number] + arguments.encode()) for _, number, arguments in check.calls]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()

"""Work that is done once for all who ask for it while it is under way. Knows keys and who waits; never the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
IsWanted = Callable[[], bool]


class NobodyWaitsError(Exception):
    """What all who asked for have lost interest in was left undone."""


@dataclass(slots=True, eq=False)
class _Piece(Generic[T]):
    askers: list[IsWanted] = field(default_factory=list)
    task: asyncio.Task[T] | None = None

    def is_wanted(self) -> bool:
        return any(is_open() for is_open in self.askers)


class SharedWork(Generic[T]):
    """Used on one event loop."""

    def __init__(self) -> None:
        self._pieces: dict[bytes, _Piece[T]] = {}

    async def once(self, key: bytes, is_open: IsWanted, work: Callable[[IsWanted], Coroutine[None, None, T]]) -> T:
        """The result of `work`, of this call or of one before it that is under way under the same key.

        is_open:  whether this caller still wants it
        work:     told how to ask whether anybody does; may raise NobodyWaitsError if not
        Raises what `work` raises.
        """
        while True:
            piece = self._pieces.setdefault(key, _Piece())
            piece.askers.append(is_open)
            if piece.task is None:
                piece.task = asyncio.get_running_loop().create_task(work(piece.is_wanted))
                piece.task.add_done_callback(lambda _: self._pieces.pop(key))
            try:
                return await asyncio.shield(piece.task)
            except NobodyWaitsError:
                if not is_open():
                    raise

"""Work that is done once for all who ask for it while it is under way. Knows keys and who waits; never the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
IsWanted = Callable[[], bool]


class NobodyWaitsError(Exception):
    """What all who asked for have lost interest in was left undone."""


@dataclass(frozen=True, slots=True, eq=False)
class _Piece(Generic[T]):
    askers: list[IsWanted]
    task: asyncio.Task[T]


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
            piece = self._pieces.get(key)
            if piece is None or piece.task.done():
                piece = self._begin(key, is_open, work)
            else:
                piece.askers.append(is_open)
            try:
                return await asyncio.shield(piece.task)
            except NobodyWaitsError:
                if not is_open():
                    raise

    def _begin(
        self, key: bytes, is_open: IsWanted, work: Callable[[IsWanted], Coroutine[None, None, T]]
    ) -> _Piece[T]:
        askers = [is_open]
        task = asyncio.get_running_loop().create_task(work(lambda: any(is_open() for is_open in askers)))
        piece = self._pieces[key] = _Piece(askers, task)
        task.add_done_callback(lambda _: self._end(key, piece))
        return piece

    def _end(self, key: bytes, piece: _Piece[T]) -> None:
        if self._pieces.get(key) is piece:
            del self._pieces[key]

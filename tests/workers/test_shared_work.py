"""Work that several callers wait for: done once, for as long as one of them wants it."""

from __future__ import annotations

import asyncio

import pytest

from workers.shared_work import IsWanted, NobodyWaitsError, SharedWork


class Work:
    """Counts how often it is begun; done when told."""

    def __init__(self) -> None:
        self.num_begun = 0
        self.may_end = asyncio.Event()
        self.is_wanted: IsWanted = bool

    async def __call__(self, is_wanted: IsWanted) -> int:
        self.num_begun += 1
        self.is_wanted = is_wanted
        await self.may_end.wait()
        if not is_wanted():
            raise NobodyWaitsError
        return self.num_begun


async def run_with(is_open: list[bool]) -> tuple[list[object], Work]:
    shared: SharedWork[int] = SharedWork()
    work = Work()
    callers = [asyncio.ensure_future(shared.once(b"key", lambda i=i: is_open[i], work)) for i in range(len(is_open))]
    while not work.num_begun:
        await asyncio.sleep(0)
    work.may_end.set()
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert not shared._pieces
    return list(results), work


def test_callers_share_it() -> None:
    results, work = asyncio.run(run_with([True, False, True]))
    assert results == [1, 1, 1]
    assert work.num_begun == 1


def test_nobody_wants_it() -> None:
    results, _ = asyncio.run(run_with([False, False]))
    assert all(isinstance(result, NobodyWaitsError) for result in results)


def test_who_comes_when_it_was_dropped_has_it_done_again() -> None:
    async def body() -> None:
        shared: SharedWork[int] = SharedWork()
        work = Work()
        is_open = [False, True]
        first = asyncio.ensure_future(shared.once(b"key", lambda: is_open[0], work))
        while not work.num_begun:
            await asyncio.sleep(0)
        work.may_end.set()
        while not shared._pieces[b"key"].task.done():  # type: ignore[union-attr]
            await asyncio.sleep(0)  # its callers do not know yet
        second = await shared.once(b"key", lambda: is_open[1], work)
        assert second == 2
        with pytest.raises(NobodyWaitsError):
            await first

    asyncio.run(body())


def test_one_caller_that_goes_does_not_take_it_from_others() -> None:
    async def body() -> None:
        shared: SharedWork[int] = SharedWork()
        work = Work()
        first = asyncio.ensure_future(shared.once(b"key", lambda: True, work))
        second = asyncio.ensure_future(shared.once(b"key", lambda: True, work))
        while not work.num_begun:
            await asyncio.sleep(0)
        first.cancel()
        work.may_end.set()
        assert await second == 1

    asyncio.run(body())

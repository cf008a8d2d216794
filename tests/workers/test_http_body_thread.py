"""Large bodies are parsed on a thread, one after the other, while the loop goes on; small ones where they arrive."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from sparkinfer.errors import RequestError
from workers.http_body_thread import LARGE_BYTES, SWITCH_INTERVAL_S, BodyThread


def test_the_loop_goes_on_while_a_large_body_is_parsed() -> None:
    usual = sys.getswitchinterval()

    async def run() -> None:
        bodies, goes_on = BodyThread(), threading.Event()
        first = asyncio.ensure_future(bodies.run(LARGE_BYTES + 1, goes_on.wait, 20.0))
        second = asyncio.ensure_future(bodies.run(LARGE_BYTES + 1, goes_on.is_set))
        await asyncio.sleep(0)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
        assert await bodies.run(LARGE_BYTES, threading.current_thread) is threading.current_thread()
        assert not first.done()
        goes_on.set()
        assert await asyncio.gather(first, second) == [True, True]

    asyncio.run(run())
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_what_is_wrong_with_a_large_body_is_told() -> None:
    usual = sys.getswitchinterval()

    def refuse(words: str) -> None:
        raise RequestError(400, words)

    with pytest.raises(RequestError, match="no object"):
        asyncio.run(BodyThread().run(1 << 20, refuse, "no object"))
    assert sys.getswitchinterval() == pytest.approx(usual)

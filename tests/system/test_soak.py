"""Streams with random disconnects, then silence: everything that was taken is given back."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.system.harness import SCRIPTED, Server
from tests.system.streams import Outcome, run_streams, stream_completion

SOAK_S = 15.0
STREAMS = 32


def resources(server: Server) -> dict[str, object]:
    """What an idle server holds: KV, descriptors and threads by process, shared mappings."""
    counts = {}
    for process in server.workers():
        name = process.cmdline()[2]
        shared = sum(1 for m in process.memory_maps(grouped=False) if "memfd:" in m.path)
        sockets = sum(1 for c in process.net_connections("tcp") if c.status == "ESTABLISHED")
        counts[name] = (process.num_fds() - sockets, process.num_threads(), shared)
    capacity = server.capacity()
    return {"kv": capacity["free_kv_blocks"], "active": capacity["active_requests"], "processes": counts}


async def soak(url: str, until: float, seed: int) -> list[Outcome]:
    """One client after another on each of STREAMS lanes; about half of them hang up at a random moment."""
    chance = random.Random(seed)
    outcomes: list[Outcome] = []

    async def lane(number: int) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            while time.monotonic() < until:
                leave_after = chance.randrange(1, 40) if chance.random() < 0.5 else None
                length = chance.randrange(1, 120)
                outcome = await stream_completion(client, url, f"lane {number} goes on", length, leave_after)
                outcomes.append(outcome)
                if leave_after is None:
                    assert outcome.num_ends == 1, outcome

    await asyncio.gather(*(lane(i) for i in range(STREAMS)))
    return outcomes


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_everything_is_given_back(embedded_model: Path) -> None:
    with Server(embedded_model, *SCRIPTED, "engine.scripted_step_us=1000") as server:
        asyncio.run(run_streams(server.url, STREAMS, 20))  # lazily made things exist now
        settle(server)
        before = resources(server)
        outcomes = asyncio.run(soak(server.url, time.monotonic() + SOAK_S, seed=1))
        assert len(outcomes) > 10 * STREAMS
        settle(server)
        assert resources(server) == before
        assert "IntegrityError" not in server.log


def settle(server: Server) -> None:
    deadline = time.monotonic() + 20
    while server.capacity()["active_requests"] and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    threading.Event().wait(1.0)  # closed connections leave the kernel's tables

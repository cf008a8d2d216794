"""kill -9 of every process under load: each affected request ends once, the others do not notice, nothing is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from tests.system.harness import SCRIPTED, Server, shared_memory_names
from tests.system.streams import Outcome, run_streams
from tests.system.test_shutdown import wait_active

LOAD = (*SCRIPTED, "engine.scripted_step_us=5000", "server.http_workers=2", "server.text_workers=2")
STREAMS, TOKENS = 24, 200


def under_load(server: Server, disturb: Callable[[], None]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(asyncio.run(run_streams(server.url, STREAMS, TOKENS))))
    thread.start()
    wait_active(server, STREAMS)
    disturb()
    thread.join(90)
    assert len(outcomes) == STREAMS
    return outcomes


def finished(outcomes: list[Outcome]) -> list[Outcome]:
    return [o for o in outcomes if o.done and o.finishes == ["length"] and not o.errors]


def serves(server: Server) -> None:
    server.wait_ready_again()
    again = asyncio.run(run_streams(server.url, 4, 5))
    assert [o.finishes for o in again] == [["length"]] * 4
    capacity = server.capacity()
    assert capacity["active_requests"] == 0


def test_http_worker(embedded_model: Path) -> None:
    with Server(embedded_model, *LOAD) as server:
        free_blocks = server.capacity()["free_kv_blocks"]
        outcomes = under_load(server, server.worker("http-0").kill)
        broken = [o for o in outcomes if o.broken]
        assert len(finished(outcomes)) + len(broken) == STREAMS
        assert finished(outcomes), "the other http worker's streams must finish"
        serves(server)
        assert server.capacity()["free_kv_blocks"] == free_blocks


def test_text_worker(embedded_model: Path) -> None:
    with Server(embedded_model, *LOAD) as server:
        free_blocks = server.capacity()["free_kv_blocks"]
        outcomes = under_load(server, server.worker("text-0").kill)
        failed = [o for o in outcomes if o.errors]
        assert len(finished(outcomes)) + len(failed) == STREAMS
        assert finished(outcomes)
        assert failed
        assert all(o.num_ends == 1 and not o.broken for o in outcomes)
        serves(server)
        assert server.capacity()["free_kv_blocks"] == free_blocks


def test_gpu_scheduler(embedded_model: Path) -> None:
    health: list[int] = []

    def kill(server: Server) -> None:
        gpu = server.worker("gpu-0")
        gpu.kill()
        gpu.wait(10)
        while not health or (health[-1] == 200 and len(health) < 1000):
            health.append(httpx.get(f"{server.url}/health", timeout=5).status_code)

    with Server(embedded_model, *LOAD) as server:
        outcomes = under_load(server, lambda: kill(server))
        assert health[-1] == 503, "as long as the engine is away"
        assert all(o.num_ends == 1 and not o.broken for o in outcomes), [o for o in outcomes if o.num_ends != 1]
        assert all(o.errors for o in outcomes)
        assert all(e["type"] and e["code"] for o in outcomes for e in o.errors)
        serves(server)


def test_supervisor(embedded_model: Path) -> None:
    """Orphans must not live on: the kernel ends them with their parent."""
    before = shared_memory_names()
    with Server(embedded_model, *LOAD) as server:
        processes = server.workers()
        assert sum(process.ppid() == server.process.pid for process in processes) == 5  # some have helpers
        server.process.kill()
        server.process.wait(10)
        _, alive = psutil.wait_procs(processes, timeout=10)
        assert alive == []
        assert shared_memory_names() == before


@pytest.mark.parametrize("name", ["http-0", "text-0", "gpu-0"])
def test_killed_while_idle(embedded_model: Path, name: str) -> None:
    with Server(embedded_model, *SCRIPTED) as server:
        killed = server.worker(name)
        killed.kill()
        psutil.wait_procs([killed], timeout=10)
        serves(server)


def test_no_descriptor_for_the_next_start(embedded_model: Path) -> None:
    """Whatever the system lacks when a worker is to be started again, the others serve on and the start is retried."""
    with Server(embedded_model, *LOAD) as server:
        supervisor = psutil.Process(server.process.pid)
        soft, hard = supervisor.rlimit(psutil.RLIMIT_NOFILE)
        supervisor.rlimit(psutil.RLIMIT_NOFILE, (3, hard))
        killed = server.worker("text-0")
        killed.kill()
        psutil.wait_procs([killed], timeout=10)
        server.wait_said("text-0 cannot be started: ", count=2)
        outcomes = asyncio.run(run_streams(server.url, 4, 5))
        assert [o.finishes for o in outcomes] == [["length"]] * 4
        supervisor.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
        server.wait_said("text-0 ready", count=2)
        serves(server)

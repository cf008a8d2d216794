"""The gpu scheduler's loop when nothing can run: it sleeps, and a file that was read wakes it."""

from __future__ import annotations

import os
import select
import signal
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from sparkinfer.config import Config, PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.disk_tier import DiskTier
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, echo_script
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.request import RequestId
from tests.engine.engines import EOS, RecordingSink, sampling
from workers.gpu_scheduler import IDLE_POLL_S, STALLED_POLL_S, GpuScheduler


class SlowFiles:
    """Stands for PrefixDisk: everything is there, and read when the test says so."""

    def __init__(self) -> None:
        self.reads: list[Future[list[bytes]]] = []

    def has(self, _name: str) -> bool:
        return True

    def read(self, _names: list[str]) -> Future[list[bytes]]:
        self.reads.append(Future())
        return self.reads[-1]


class Sink(RecordingSink):
    """Of the loop: rings that are never full."""

    def flush(self) -> None:
        """Nothing waits."""

    def unread(self) -> list[int]:
        return []


@pytest.fixture
def signals():
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, handler)


def test_waiting_for_a_file_does_not_spin(monkeypatch, signals):
    cache = make_cache(PrefixCacheConfig(), num_blocks=16, block_size=4, bytes_per_snapshot=0, free=1 << 30)
    files = SlowFiles()
    cache.disk = DiskTier(cache.prefix_cache, files)
    sink = Sink()
    engine = Engine(Scheduler(SchedulerConfig(), cache, 64), ScriptedModelRunner(echo_script(3, EOS), 16, 4), sink)
    never, _ = os.pipe()
    num_turns = 0

    def drain() -> list[object]:
        nonlocal num_turns
        num_turns += 1
        if num_turns == 1:
            engine.submit(RequestId(1), 0, [5, 6, 7, 8, 9], sampling(max_tokens=5))
        return []

    status = SimpleNamespace(beat=lambda: None, set_gauge=lambda *_: None)
    context = SimpleNamespace(
        config=Config(), status=status, inbox=SimpleNamespace(fileno=lambda: never, drain=drain), ready=lambda: None
    )
    sleeps: list[float] = []
    real_select = select.select

    def sleep(readers, _writers, _errors, timeout_s):
        sleeps.append(timeout_s)
        if sleeps.count(STALLED_POLL_S) == 3 and not files.reads[0].done():
            assert real_select(readers, [], [], 0)[0] == []
            files.reads[0].set_result([])  # damaged: the request is computed
            assert real_select(readers, [], [], 0)[0] == readers[1:]
        if sleeps.count(IDLE_POLL_S) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real_select(readers, [], [], 0)

    monkeypatch.setattr("workers.gpu_scheduler.select.select", sleep)
    loop = GpuScheduler(context, engine, sink, 16, cache.disk)
    loop.run()
    assert sleeps[:4] == [IDLE_POLL_S, STALLED_POLL_S, STALLED_POLL_S, STALLED_POLL_S]
    assert sleeps[4:] == [IDLE_POLL_S] * len(sleeps[4:])
    assert sink.tokens == {(1, 0): [7, 8, 9]}

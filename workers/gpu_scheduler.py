"""The gpu scheduler: loads the model, runs the Engine's loop, publishes token records once per step and text worker.

Owns weights, KV and state pools; never text, JSON, templates or sockets to clients.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
from typing import Any

import msgspec
import numpy as np

from ipc.codec import GPU_INBOX
from ipc.messages import Abort, Generate, PeerDown, PeerUp
from ipc.status_board import BootPhase, GpuGauge
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import Config
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.disk_tier import DiskTier
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.memory_plan import MemoryPlan, free_host_memory
from sparkinfer.engine.model_runner import ModelRunner
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.sequence import PrefixHints
from workers import process
from workers.gpu_cache import attach_disk, beside_pinned, pinned_tokens, reserve_snapshots, warm_up
from workers.gpu_gauges import GpuGauges
from workers.gpu_masks import TableMasks
from workers.gpu_runners import is_on_gpu, scripted_runner, step_limits, torch_runner
from workers.gpu_sink import RingSink
from workers.process import WorkerContext
from workers.service_info import service_info

log = logging.getLogger("gpu_scheduler")

IDLE_POLL_S = 0.25
STALLED_POLL_S = 0.02  # requests are open, but none can run now: their deadlines are looked at this often


class GpuScheduler:
    """The process's loop: messages in, one engine step, heartbeat and gauges."""

    def __init__(
        self, context: WorkerContext, engine: Engine, sink: RingSink, total_blocks: int, disk: DiskTier | None = None
    ) -> None:
        self._context = context
        self._engine = engine
        self._sink = sink
        num_slots = context.config.scheduler.max_num_seqs
        self._gauges = GpuGauges(context.status, engine, total_blocks, num_slots)
        self._stopping = False
        engine.while_waiting = self._while_waiting
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write)
        if disk is not None:
            disk.on_read = self._wake
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, _number: int, _frame: Any) -> None:
        self._stopping = True

    def run(self) -> None:
        """Report READY and serve until SIGTERM."""
        inbox, status = self._context.inbox, self._context.status
        self._gauges.write()
        self._context.ready()
        is_stalled = False
        while not self._stopping:
            if is_stalled or not self._engine.has_work:
                self._sleep(STALLED_POLL_S if self._engine.has_work else IDLE_POLL_S)
            for message in inbox.drain():
                self._handle(message)
            is_stalled = self._engine.has_work and not self._engine.step()
            self._sink.flush()
            for index in self._sink.unread():
                log.error("text-%d does not read its ring: dropping its requests", index)
                self._drop_requests_of(index)
            status.beat()
            self._gauges.write()
        self._engine.close()

    def _sleep(self, timeout_s: float) -> None:
        """Until a message, a signal or a file that was read."""
        select.select([self._context.inbox.fileno(), self._wake_read], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _wake(self) -> None:
        """Called by any thread."""
        with contextlib.suppress(BlockingIOError):  # full: it will wake up anyhow
            os.write(self._wake_write, b"\0")

    def _while_waiting(self) -> None:
        """A step may take minutes on a CPU: the loop lives, and what did not fit a ring can still leave."""
        self._sink.flush()
        self._context.status.beat()

    def _handle(self, message: Any) -> None:
        if isinstance(message, Generate):
            if self._context.peers.is_dead(f"text-{message.reply_to}", message.generation):
                return
            prompt_token_ids = np.frombuffer(message.prompt_token_ids, dtype="<i4").tolist()
            self._engine.submit(
                message.request_id, message.reply_to, prompt_token_ids, message.sampling, message.n, message.priority,
                message.client_id, self._hints(message), tuple(message.mask_rows), message.sent_at,
            )
            self._context.status.add_gauge(GpuGauge.REQUESTS, 1)
            self._context.status.add_gauge(GpuGauge.PROMPT_TOKENS, len(prompt_token_ids))
        elif isinstance(message, Abort):
            self._engine.abort(message.request_id, message.choice)
            self._context.status.add_gauge(GpuGauge.ABORTS, 1)
        elif isinstance(message, PeerUp):
            self._context.peers.up(message)
        elif isinstance(message, PeerDown) and self._context.peers.down(message) and message.name.startswith("text-"):
            self._drop_requests_of(int(message.name.partition("-")[2]))

    def _hints(self, message: Generate) -> PrefixHints:
        salts = self._context.config.prefix_cache.salt_by_key
        salt = message.client_id.to_bytes(8, "little", signed=True) if salts else b""
        return PrefixHints(salt, message.uses_cache, tuple(message.turn_starts), message.explain_cache)

    def _drop_requests_of(self, index: int) -> None:
        for request_id in self._engine.scheduler.open_requests.of_worker(index):
            self._engine.abort(request_id)
        self._sink.reset(index)


def _cache(config: Config, plan: MemoryPlan, runner: ModelRunner) -> CacheManager:
    return make_cache(
        config.prefix_cache,
        num_blocks=plan.num_blocks,
        block_size=config.engine.block_size,
        bytes_per_snapshot=runner.bytes_per_slot,
        bytes_per_block=plan.bytes_per_block,
        swap_gib=config.scheduler.swap_gib,
        free=free_host_memory(),
        prompt_grid=runner.prompt_grid,
    )


def _body(context: WorkerContext) -> int:
    config, status = context.config, context.status
    status.phase = BootPhase.READING_METADATA
    gguf = GGUFFile.open(context.spec.model_path)
    hparams = HParams.from_gguf(gguf)
    pinned = pinned_tokens(config, hparams.vocab_size)
    if config.engine.runner == "scripted":
        runner, plan = scripted_runner(config, gguf, hparams, TableMasks(context.mask_table))
    else:
        runner, plan = torch_runner(context, gguf, hparams)
    plan = beside_pinned(plan, len(pinned), config)
    cache = _cache(config, plan, runner)
    scheduler = Scheduler(step_limits(config, runner.chunk_ms), cache, plan.max_model_len)
    scheduler.output_tokens.forced = TableMasks(context.mask_table)
    sink = RingSink(context)
    engine = Engine(scheduler, runner, sink)
    attach_disk(config, gguf, hparams, cache, runner, engine)
    reserve_snapshots(config, cache, runner, status.beat)
    warm_up(pinned, cache, engine)
    is_greedy = config.engine.deterministic or config.model.sampling_defaults == "greedy"
    info = service_info(config.model, gguf, hparams, plan.max_model_len, is_greedy) | {"is_on_gpu": is_on_gpu(config)}
    context.board.write_service_info(msgspec.json.encode(info))
    GpuScheduler(context, engine, sink, plan.num_blocks, cache.disk).run()
    return process.EXIT_CLEAN


if __name__ == "__main__":
    process.run(_body, GPU_INBOX)

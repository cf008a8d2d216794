"""The gpu scheduler: loads the model, runs the Engine's loop, publishes token records once per step and text worker.

Owns weights, KV and state pools; never text, JSON, templates or sockets to clients.
"""

from __future__ import annotations

import functools
import logging
import os
import select
import signal
from typing import Any

import msgspec
import numpy as np
import torch

from ipc.codec import GPU_INBOX
from ipc.messages import Abort, Generate, PeerDown, PeerUp, SequenceEvent, SequenceFinished, SequenceQueued
from ipc.status_board import BootPhase, GpuGauge
from ipc.token_frame import TokenFrameWriter, pack_events
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import Config
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, StepCost
from sparkinfer.engine.kv_cache import KVCache, bytes_per_block, choose_kv_dtype
from sparkinfer.engine.memory_plan import MemoryPlan, check_weights_fit, free_host_memory, plan_memory
from sparkinfer.engine.model_runner import ModelRunner
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import Logprobs
from sparkinfer.engine.sequence import PrefixHints
from sparkinfer.engine.state_pool import StatePool, bytes_per_slot
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.engine.torch_model_runner import TorchModelRunner
from sparkinfer.errors import ConfigError
from sparkinfer.model.registry import load_model
from sparkinfer.request import FinishReason
from workers import process
from workers.gpu_cache import attach_disk, pinned_tokens, warm_up
from workers.gpu_gauges import GpuGauges
from workers.process import WorkerContext
from workers.service_info import service_info

log = logging.getLogger("gpu_scheduler")

IDLE_POLL_S = 0.25


class RingSink:
    """Publishes the engine's news: per step one token frame and one event frame at most to each text worker."""

    def __init__(self, context: WorkerContext) -> None:
        self._writers = {int(name.partition("-")[2]): writer for name, writer in context.writers.items()}
        self._frames = {index: TokenFrameWriter() for index in self._writers}
        self._overflowed: list[int] = []

    def publish(self, events: StepEvents) -> None:
        """Queued first, then tokens, then finished: the order in which a text worker needs them."""
        for index, writer in self._writers.items():
            queued: list[SequenceEvent] = [SequenceQueued(s.request_id) for s in events.queued if s.reply_to == index]
            if queued:
                writer.push(pack_events(queued))
        self._push_tokens(events)
        for index, writer in self._writers.items():
            finished: list[SequenceEvent] = [
                SequenceFinished(
                    s.request_id, s.choice, s.finish_reason or FinishReason.ERROR, s.num_cached_tokens,
                    s.ttft_ms, s.generation_ms, s.status_code, s.code, s.message, s.queue_ms,
                    s.cache_report,
                )
                for s in events.finished
                if s.reply_to == index
            ]
            if finished:
                writer.push(pack_events(finished))
            writer.ring()

    def _push_tokens(self, events: StepEvents) -> None:
        logprobs: list[Logprobs | None] = events.logprobs or [None] * len(events.sequences)
        for sequence, token_id, entry in zip(events.sequences, events.token_ids, logprobs):
            frame = self._frames.get(sequence.reply_to)
            if frame is None:
                continue
            if entry is None:
                frame.append(sequence.request_id, sequence.choice, token_id)
            else:
                top = list(zip(entry.top_token_ids, entry.top_logprobs))
                frame.append(sequence.request_id, sequence.choice, token_id, entry.logprob, top)
        for index, frame in self._frames.items():
            if len(frame):
                self._writers[index].push(frame.to_bytes())

    def flush(self) -> None:
        """Retry what did not fit a full ring."""
        for writer in self._writers.values():
            writer.ring()

    def reset(self, index: int) -> None:
        """The text worker died: forget what waits for it."""
        self._writers[index].reset()

    def unread(self) -> list[int]:
        """Text workers that stopped reading and lost frames."""
        return [index for index, writer in self._writers.items() if writer.overflowed]


class GpuScheduler:
    """The process's loop: messages in, one engine step, heartbeat and gauges."""

    def __init__(self, context: WorkerContext, engine: Engine, sink: RingSink, total_blocks: int) -> None:
        self._context = context
        self._engine = engine
        self._sink = sink
        num_slots = context.config.scheduler.max_num_seqs
        self._gauges = GpuGauges(context.status, engine, total_blocks, num_slots)
        self._stopping = False
        engine.while_waiting = self._while_waiting
        self._wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, _number: int, _frame: Any) -> None:
        self._stopping = True

    def run(self) -> None:
        """Report READY and serve until SIGTERM."""
        inbox, status = self._context.inbox, self._context.status
        self._gauges.write()
        self._context.ready()
        while not self._stopping:
            if not self._engine.has_work:
                select.select([inbox.fileno(), self._wake_read], [], [], IDLE_POLL_S)
            for message in inbox.drain():
                self._handle(message)
            if self._engine.has_work:
                self._engine.step()
            self._sink.flush()
            for index in self._sink.unread():
                log.error("text-%d does not read its ring: dropping its requests", index)
                self._drop_requests_of(index)
            status.beat()
            self._gauges.write()
        self._engine.close()

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
                message.client_id, self._hints(message),
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
        for request_id in self._engine.scheduler.requests_of(index):
            self._engine.abort(request_id)
        self._sink.reset(index)


def choose_device(name: str) -> torch.device:
    """[engine] device as a torch device; "auto" takes a GPU where there is one. Raises ConfigError."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"[engine] device = {name!r}: allowed: auto, cpu, cuda, cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"[engine] device = {name!r}: allowed: auto, cpu, cuda, cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"[engine] device = {name!r}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def _free_memory(device: torch.device) -> int:
    return free_host_memory() if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[0])


def _plan(config: Config, hparams: HParams, block_bytes: int, free: int) -> MemoryPlan:
    return plan_memory(
        config.engine,
        bytes_per_block=block_bytes,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=config.model.max_model_len,
        model_context=hparams.max_position,
        free=free,
    )


def _scripted_runner(config: Config, hparams: HParams) -> tuple[ModelRunner, MemoryPlan]:
    """Echoes the prompt over and over: output that a test or benchmark chooses, at any length."""
    length = min(config.model.max_model_len or hparams.max_position, hparams.max_position)
    blocks_per_sequence = -(-length // config.engine.block_size)
    plan = MemoryPlan(blocks_per_sequence * config.scheduler.max_num_seqs, length)

    def script(prompt_token_ids: list[int]) -> list[int]:
        return prompt_token_ids * (1 + length // len(prompt_token_ids))

    cost = StepCost(base_us=config.engine.scripted_step_us)
    return ScriptedModelRunner(script, plan.num_blocks, config.engine.block_size, cost), plan


def _torch_runner(context: WorkerContext, gguf: GGUFFile, hparams: HParams) -> tuple[ModelRunner, MemoryPlan]:
    """Load the weights and allocate the pools, with progress on the status board; with kernels if they can."""
    config, status = context.config, context.status
    device = choose_device(config.engine.device)
    torch.set_num_threads(config.engine.threads or len(os.sched_getaffinity(0)))
    if device.type == "cuda":
        from workers import cuda_runner  # brings Triton, which a CPU has no use for

        if cuda_runner.is_covered(gguf, hparams, config.engine.deterministic):
            return cuda_runner.boot(context, gguf, hparams, device, functools.partial(_plan, config, hparams))
    dtype = choose_kv_dtype(config.engine.kv_dtype, hparams, device)
    status.phase = BootPhase.LOADING_WEIGHTS

    def progress(done: int, total: int) -> None:
        status.set_progress(done, total)
        status.beat()

    check_weights_fit(gguf, hparams, _free_memory(device))
    model = load_model(gguf, hparams, device, progress, config.engine.deterministic)
    status.set_progress(0, 0)
    status.phase = BootPhase.ALLOCATING
    plan = _plan(config, hparams, bytes_per_block(hparams, config.engine.block_size, dtype), _free_memory(device))
    kv_cache = KVCache(hparams, plan.num_blocks, config.engine.block_size, dtype, device)
    state_pool = StatePool(hparams, config.scheduler.max_num_seqs, device)
    log.info("KV cache: %d blocks of %d tokens on %s", plan.num_blocks, config.engine.block_size, device)
    return TorchModelRunner(
        model, kv_cache, state_pool, config.scheduler.max_num_seqs, plan.max_model_len, device
    ), plan


def _cache(config: Config, hparams: HParams, plan: MemoryPlan) -> CacheManager:
    return make_cache(
        config.prefix_cache,
        num_blocks=plan.num_blocks,
        block_size=config.engine.block_size,
        bytes_per_snapshot=0 if config.engine.runner == "scripted" else bytes_per_slot(hparams),
        bytes_per_block=plan.bytes_per_block,
        swap_gib=config.scheduler.swap_gib,
        free=free_host_memory(),
    )


def _body(context: WorkerContext) -> None:
    config, status = context.config, context.status
    status.phase = BootPhase.READING_METADATA
    gguf = GGUFFile.open(context.spec.model_path)
    hparams = HParams.from_gguf(gguf)
    if config.engine.runner == "scripted":
        runner, plan = _scripted_runner(config, hparams)
    else:
        runner, plan = _torch_runner(context, gguf, hparams)
    cache = _cache(config, hparams, plan)
    scheduler = Scheduler(config.scheduler, cache, plan.max_model_len)
    sink = RingSink(context)
    engine = Engine(scheduler, runner, sink, frozenset())
    attach_disk(config, gguf, cache, runner, engine)
    warm_up(pinned_tokens(config.prefix_cache, hparams.vocab_size), cache, engine)
    is_greedy = config.engine.deterministic or config.model.sampling_defaults == "greedy"
    info = service_info(config.model, gguf, hparams, plan.max_model_len, is_greedy)
    context.board.write_service_info(msgspec.json.encode(info))
    GpuScheduler(context, engine, sink, plan.num_blocks).run()


if __name__ == "__main__":
    process.run(_body, GPU_INBOX)

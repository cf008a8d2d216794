"""Boots the model runner of the CPU kernels, with progress on the status board.

Knows phases and progress; what covers what is the library's business.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import torch

from ipc.status_board import BootPhase
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.kv_cache import KVCache, bytes_per_block, choose_kv_dtype
from sparkinfer.engine.memory_plan import GIB, MemoryPlan, beside_states, free_host_memory
from sparkinfer.engine.state_pool import StatePool, bytes_per_slot
from sparkinfer.engine.torch_model_runner import TorchModelRunner
from sparkinfer.errors import CheckpointError
from sparkinfer.model.cpu.coverage import packed_bytes, why_not_covered
from sparkinfer.model.cpu.loader import load_cpu_model
from workers.process import WorkerContext

log = logging.getLogger("gpu_scheduler")


def is_covered(hparams: HParams) -> bool:
    """Whether the kernels run this checkpoint on this machine; says in the log why not."""
    reason = why_not_covered(hparams)
    if reason is not None:
        log.warning("torch's own operations in f32 instead of CPU kernels: %s", reason)
    return reason is None


def boot(
    context: WorkerContext, gguf: GGUFFile, hparams: HParams, plan_for: Callable[[int, int], MemoryPlan]
) -> tuple[TorchModelRunner, MemoryPlan]:
    """plan_for(bytes_per_block, free_bytes) sizes the KV cache once the weights are loaded."""
    config, status, device = context.config, context.status, torch.device("cpu")
    num_threads = config.engine.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(1)  # for sampling; more would only spin beside the kernels' own threads
    status.phase = BootPhase.LOADING_WEIGHTS

    def progress(done: int, total: int) -> None:
        status.set_progress(done, total)
        status.beat()

    needed, free = packed_bytes(gguf), free_host_memory()
    if needed > free:
        raise CheckpointError(
            f"{gguf.path}: the weights take {needed / GIB:.2f} GiB, {free / GIB:.2f} GiB of memory are free"
        )
    model = load_cpu_model(gguf, hparams, num_threads, progress)
    status.set_progress(0, 0)
    status.phase = BootPhase.ALLOCATING
    block_size, max_num_seqs = config.engine.block_size, config.scheduler.max_num_seqs
    dtype = choose_kv_dtype(config.engine.kv_dtype, hparams, device)
    free = beside_states(free_host_memory(), bytes_per_slot(hparams), max_num_seqs)
    plan = plan_for(bytes_per_block(hparams, block_size, dtype), free)
    kv_cache = KVCache(hparams, plan.num_blocks, block_size, dtype, device)
    state_pool = StatePool(hparams, max_num_seqs, device)
    model.use(kv_cache, state_pool)  # compiles attention for them
    log.info("CPU kernels on %d threads; KV cache: %d blocks of %d tokens", num_threads, plan.num_blocks, block_size)
    return TorchModelRunner(model, kv_cache, state_pool, max_num_seqs, plan.max_model_len, device), plan

"""Boots the CUDA model runner: weights, pools, captured graphs, with progress on the status board.

Knows phases and progress; what covers what is the library's business.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import torch

from ipc.status_board import BootPhase
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import Config, EngineConfig, SchedulerConfig
from sparkinfer.engine.cuda_model_runner import CudaModelRunner
from sparkinfer.engine.cuda_workspace import measure_workspace
from sparkinfer.engine.device import free_memory, memory_for
from sparkinfer.engine.kv_cache import KVCache, bytes_per_block, choose_kv_dtype
from sparkinfer.engine.memory_plan import GIB, MemoryPlan
from sparkinfer.errors import ConfigError
from sparkinfer.model.cuda.coverage import why_not_covered
from sparkinfer.model.cuda.loader import load_decode_weights
from sparkinfer.model.cuda.pools import CudaPools, RingStatePool
from sparkinfer.model.cuda.weights import DecodeWeights
from workers.process import WorkerContext

log = logging.getLogger("gpu_scheduler")

SPARE_BYTES = GIB  # graphs with their logits, the libraries' own workspaces, the allocator's rounding


def is_covered(gguf: GGUFFile, hparams: HParams) -> bool:
    """Whether the kernels run this checkpoint; says in the log why not."""
    reason = why_not_covered(gguf, hparams)
    if reason is not None:
        log.warning("torch's own operations in f32 instead of kernels: %s", reason)
    return reason is None


def boot(
    context: WorkerContext,
    gguf: GGUFFile,
    hparams: HParams,
    device: torch.device,
    plan_for: Callable[[int, int], MemoryPlan],
) -> tuple[CudaModelRunner, MemoryPlan]:
    """plan_for(bytes_per_block, free_bytes) sizes the KV cache once the weights are loaded."""
    config, status = context.config, context.status

    def progress(done: int, total: int) -> None:
        status.set_progress(done, total)
        status.beat()

    status.phase = BootPhase.LOADING_WEIGHTS
    weights = _load_weights(config.engine, gguf, hparams, device, progress)
    status.set_progress(0, 0)
    status.phase = BootPhase.ALLOCATING
    block_size, max_num_seqs = config.engine.block_size, config.scheduler.max_num_seqs
    dtype = choose_kv_dtype(config.engine.kv_dtype, hparams, device)
    workspace = _workspace(config, weights, hparams, dtype)
    with memory_for(f"[scheduler] max_num_seqs = {max_num_seqs}: recurrent states of so many", device, "lower it"):
        states = RingStatePool(hparams, max_num_seqs + 1, device)
    free = max(0, torch.cuda.mem_get_info(device)[0] - workspace - SPARE_BYTES)
    plan = plan_for(bytes_per_block(hparams, block_size, dtype), free)
    cache_key = f"[engine] kv_cache_gib = {config.engine.kv_cache_gib:g}"
    with memory_for(f"{cache_key}: the KV cache", device, "lower it, or set it where it is 0"):
        pools = CudaPools(KVCache(hparams, plan.num_blocks + 1, block_size, dtype, device), states)
    _log_memory(device, plan, pools, workspace, block_size)
    remedy = "lower it (set it where it is 0), [scheduler] max_num_seqs or max_num_batched_tokens"
    with memory_for(f"{cache_key}: what runs beside the cache", device, remedy):
        is_deterministic = config.engine.deterministic
        runner = CudaModelRunner(weights, pools, max_num_seqs, plan.max_model_len, device, is_deterministic)
        _check_limits(config.scheduler, runner.prompt_grid)
        status.phase = BootPhase.WARMING_UP
        runner.capture(progress)
    log.info("kernels and graphs on %s; %.2f GiB of its memory are free", device, free_memory(device) / GIB)
    return runner, plan


def _load_weights(
    config: EngineConfig, gguf: GGUFFile, hparams: HParams, device: torch.device, progress: Callable[[int, int], None]
) -> DecodeWeights:
    """Raises ConfigError if the device has no room for them."""
    needed, free = sum(info.num_bytes for info in gguf.tensors.values()), torch.cuda.mem_get_info(device)[0]
    if needed > free:
        raise ConfigError(
            f"[engine] device = {config.device!r}: the weights take {needed / GIB:.1f} GiB, "
            f"{free / GIB:.1f} GiB of its memory are free"
        )
    remedy = "free some of it, or take a smaller file of this model"
    with memory_for(f"[engine] device = {config.device!r}: the weights", device, remedy):
        weights = load_decode_weights(gguf, hparams, device, progress)
    torch.cuda.empty_cache()
    return dataclasses.replace(weights, fp8_prompts=True) if config.prefill_dtype == "fp8" else weights


def _check_limits(limits: SchedulerConfig, prompt_grid: int) -> None:
    """Raise ConfigError where a step may have no room for the least of a prompt's chunks."""
    least = {"prefill_chunk_tokens": prompt_grid, "prefill_mix_max_tokens": prompt_grid,
             "max_num_batched_tokens": prompt_grid + limits.max_num_seqs}
    for name, tokens in least.items():
        value = getattr(limits, name)
        if prompt_grid and 0 < value < tokens:
            raise ConfigError(
                f"[scheduler] {name} = {value}: with [engine] deterministic = true prompts are computed {prompt_grid} "
                f"tokens at a time here; {tokens} or more are needed"
            )


def _workspace(config: Config, weights: DecodeWeights, hparams: HParams, dtype: torch.dtype) -> int:
    """Bytes that the largest step takes; raises ConfigError if they are not there."""
    num_tokens = config.scheduler.max_num_batched_tokens
    what = f"[scheduler] max_num_batched_tokens = {num_tokens}: steps of that size"
    with memory_for(what, weights.output.quants.device, "lower it"):
        return measure_workspace(weights, hparams, config.engine.block_size, dtype, num_tokens)


def _log_memory(device: torch.device, plan: MemoryPlan, pools: CudaPools, workspace: int, block_size: int) -> None:
    """One line that says what the device's memory goes to."""
    kv_bytes = pools.kv_cache.num_blocks * plan.bytes_per_block
    state_bytes = sum(pool.nbytes for pool in pools.state_pool.pools)
    total = torch.cuda.mem_get_info(device)[1]
    weights_bytes = torch.cuda.memory_allocated(device) - kv_bytes - state_bytes
    log.info(
        "memory of %s, %.1f GiB: weights %.2f, states of %d slots %.2f, KV cache %.2f (%d tokens; contexts of up to "
        "%d), steps %.2f, graphs and the like %.2f; %.1f are left",
        device, total / GIB, weights_bytes / GIB, pools.state_pool.num_slots, state_bytes / GIB, kv_bytes / GIB,
        plan.num_blocks * block_size, plan.max_model_len, workspace / GIB, SPARE_BYTES / GIB,
        (free_memory(device) - workspace - SPARE_BYTES) / GIB,
    )

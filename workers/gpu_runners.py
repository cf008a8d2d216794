"""Which ModelRunner the gpu scheduler drives: the model's, on a device of the machine, or a scripted one.

Owns the choice and the plan of memory; never what is run.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import logging
import os
from collections.abc import Mapping

import torch

from ipc.status_board import BootPhase
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import Config, EngineConfig, SchedulerConfig, cache_dir
from sparkinfer.engine.device import check_prefill_dtype, choose_device, free_memory
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, StepCost, said_script
from sparkinfer.engine.kv_cache import KVCache, bytes_per_block, choose_kv_dtype
from sparkinfer.engine.mask_source import MaskSource
from sparkinfer.engine.memory_plan import MemoryPlan, beside_states, check_weights_fit, plan_memory
from sparkinfer.engine.model_runner import ModelRunner
from sparkinfer.engine.state_pool import StatePool, bytes_per_slot
from sparkinfer.engine.torch_model_runner import TorchModelRunner
from sparkinfer.model.registry import load_model
from sparkinfer.text.tokenizer import Tokenizer
from workers.gpu_masks import TableMasks
from workers.process import WorkerContext

log = logging.getLogger("gpu_scheduler")


def _plan(config: Config, hparams: HParams, block_bytes: int, free: int, is_shared: bool = True) -> MemoryPlan:
    return plan_memory(
        config.engine,
        bytes_per_block=block_bytes,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=config.model.max_model_len,
        model_context=hparams.max_position,
        free=free,
        is_shared=is_shared,
    )


def scripted_runner(
    config: Config, gguf: GGUFFile, hparams: HParams, masks: MaskSource
) -> tuple[ModelRunner, MemoryPlan]:
    """Says what the prompt tells it to (said_script), or echoes it over and over: output that a client chooses."""
    length = min(config.model.max_model_len or hparams.max_position, hparams.max_position)
    blocks_per_sequence = -(-length // config.engine.block_size)
    plan = MemoryPlan(blocks_per_sequence * config.scheduler.max_num_seqs, length)

    def echo(prompt_token_ids: list[int]) -> list[int]:
        return prompt_token_ids * (1 + length // len(prompt_token_ids))

    def encode(text: str) -> list[int]:
        return tokenizer.encode_rendered(tokenizer.special_text.parse(text))

    tokenizer = Tokenizer.from_metadata(gguf.metadata, gguf.path)
    script = said_script(tokenizer.decode, encode, min(tokenizer.stop_token_ids), echo)
    cost = StepCost(base_us=config.engine.scripted_step_us)
    runner = ScriptedModelRunner(script, plan.num_blocks, config.engine.block_size, cost)
    runner.set_mask_source(masks, hparams.vocab_size)
    return runner, plan


def is_on_gpu(config: Config) -> bool:
    """Whether the weights lie in a GPU's memory."""
    return config.engine.runner != "scripted" and choose_device(config.engine.device).type == "cuda"


def step_limits(config: Config, chunk_ms: Mapping[int, float]) -> SchedulerConfig:
    """[scheduler] for the device in use: what a GPU computes in an instant would stop a CPU's streams for a second.

    chunk_ms: as ModelRunner has it
    """
    limits = config.scheduler
    most, mixed = limits.max_num_batched_tokens, limits.prefill_mix_max_tokens
    if config.engine.runner != "scripted" and choose_device(config.engine.device).type == "cpu":
        most = min(most, limits.cpu_max_num_batched_tokens or most)
        mixed = _least(mixed, limits.cpu_prefill_mix_max_tokens)
    if chunk_ms and limits.prefill_mix_max_ms:
        short = [tokens for tokens, ms in chunk_ms.items() if ms <= limits.prefill_mix_max_ms]
        mixed = _least(mixed, max(short, default=min(chunk_ms)))
        log.info("chunks of %d tokens beside streams: %.1f ms", mixed, chunk_ms.get(mixed, 0.0))
    return dataclasses.replace(limits, max_num_batched_tokens=most, prefill_mix_max_tokens=mixed)


def _least(first: int, second: int) -> int:
    """Of two limits; 0: no limit."""
    return min(first, second) if first and second else first or second


def _device(config: EngineConfig) -> torch.device:
    """Raises ConfigError where it cannot do what else [engine] asks for."""
    device = choose_device(config.device)
    check_prefill_dtype(config.prefill_dtype, device, config.deterministic)
    return device


def torch_runner(context: WorkerContext, gguf: GGUFFile, hparams: HParams) -> tuple[ModelRunner, MemoryPlan]:
    """Load the weights and allocate the pools, with progress on the status board; with kernels if they can."""
    config, status = context.config, context.status
    device = _device(config.engine)
    torch.set_num_threads(config.engine.threads or len(os.sched_getaffinity(0)))
    if device.type == "cuda":
        from workers import cuda_runner  # brings Triton, which a CPU has no use for

        if cuda_runner.is_covered(gguf, hparams):
            plan_for = functools.partial(_plan, config, hparams, is_shared=False)
            cuda, plan = cuda_runner.boot(context, gguf, hparams, device, plan_for)
            cuda.set_mask_source(TableMasks(context.mask_table))
            return cuda, plan
    if device.type == "cpu" and importlib.util.find_spec("llvmlite"):
        from kernels.cpu import compile_cache  # a GPU has no use for it

        compile_cache.use_folder(cache_dir(config.model) / "kernels")
        from workers import cpu_runner

        if cpu_runner.is_covered(hparams):
            cpu, plan = cpu_runner.boot(context, gguf, hparams, functools.partial(_plan, config, hparams))
            cpu.set_mask_source(TableMasks(context.mask_table))
            return cpu, plan
    dtype = choose_kv_dtype(config.engine.kv_dtype, hparams, device)
    status.phase = BootPhase.LOADING_WEIGHTS

    def progress(done: int, total: int) -> None:
        status.set_progress(done, total)
        status.beat()

    check_weights_fit(gguf, hparams, free_memory(device))
    model = load_model(gguf, hparams, device, progress, config.engine.deterministic)
    status.set_progress(0, 0)
    status.phase = BootPhase.ALLOCATING
    free = beside_states(free_memory(device), bytes_per_slot(hparams), config.scheduler.max_num_seqs)
    plan = _plan(config, hparams, bytes_per_block(hparams, config.engine.block_size, dtype), free)
    kv_cache = KVCache(hparams, plan.num_blocks, config.engine.block_size, dtype, device)
    state_pool = StatePool(hparams, config.scheduler.max_num_seqs, device)
    log.info("KV cache: %d blocks of %d tokens on %s", plan.num_blocks, config.engine.block_size, device)
    runner = TorchModelRunner(model, kv_cache, state_pool, config.scheduler.max_num_seqs, plan.max_model_len, device)
    runner.set_mask_source(TableMasks(context.mask_table))
    return runner, plan

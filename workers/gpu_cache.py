"""The gpu scheduler's cache beyond its own memory: files on disk, and prefixes that are computed at start.

Knows settings, the model file and the runner; never sequences.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch

from sparkinfer.checkpoint.fingerprint import fingerprint
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import Config
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.device import choose_device, memory_for
from sparkinfer.engine.disk_tier import DiskTier
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.kv_cache import choose_kv_dtype
from sparkinfer.engine.memory_plan import MemoryPlan
from sparkinfer.engine.model_runner import ModelRunner
from sparkinfer.engine.prefix_cache import token_key
from sparkinfer.engine.prefix_disk import PrefixDisk
from sparkinfer.engine.scheduler_output import SchedulerOutput, StateCopy
from sparkinfer.engine.sequence import SlotId
from sparkinfer.engine.snapshot_pool import SnapshotId
from sparkinfer.errors import ConfigError
from sparkinfer.pinned_prefix import read_pinned_tokens
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams

log = logging.getLogger("gpu_scheduler")

GIB = 1 << 30
NOBODY = -1  # no text worker's number: what it would be told is dropped
SAVES_PER_BATCH = 4  # what waits for the disk at once stays within PrefixDisk's limit: a 27B's state takes 150 MB
SNAPSHOTS_PER_BATCH = 8


def attach_disk(
    config: Config, gguf: GGUFFile, hparams: HParams, cache: CacheManager, runner: ModelRunner, engine: Engine
) -> None:
    """Let the prefix cache read and write [prefix_cache] directory, if one is named. Raises ConfigError."""
    settings = config.prefix_cache
    if not settings.directory or cache.prefix_cache is None or config.engine.runner == "scripted":
        return
    # Whatever changes the bytes of a block or state, or what they mean. What "auto" stands for depends on the device.
    dtype = choose_kv_dtype(config.engine.kv_dtype, hparams, choose_device(config.engine.device))
    kind = (type(runner).__name__, dtype, config.engine.block_size, config.engine.deterministic,
            config.engine.prefill_dtype, runner.bytes_per_slot)
    directory = Path(settings.directory).expanduser()
    disk = PrefixDisk(directory, fingerprint(gguf, *kind), int(settings.disk_gib * GIB))
    tier = cache.disk = DiskTier(cache.prefix_cache, disk)
    engine.before_close = lambda: save_all(tier, runner, settings.save_grace_s)
    log.info("prefix cache on disk: %s", directory)


def pinned_tokens(config: Config, vocab_size: int) -> list[int]:
    """The prefix to be kept for good; empty without a prefix cache. Raises ConfigError naming key and value."""
    if not config.prefix_cache.enabled:
        return []
    token_ids = read_pinned_tokens(config.prefix_cache)
    wrong = [token_id for token_id in token_ids if token_id >= vocab_size]
    if wrong:
        key = "pinned_tokens_file" if config.prefix_cache.pinned_tokens_file else "pinned_tokens"
        raise ConfigError(f"[prefix_cache] {key}: token id {wrong[0]}: allowed: 0 to {vocab_size - 1}")
    return token_ids


def beside_pinned(plan: MemoryPlan, num_pinned_tokens: int, config: Config) -> MemoryPlan:
    """What fits while a prefix holds its blocks for good: the longest sequence must fit beside it.

    Raises ConfigError when the prefix, one token behind it and one of output are longer than that, or when
    [model] max_model_len asks for more.
    """
    block_size = config.engine.block_size
    longest = min(plan.max_model_len, (plan.num_blocks - num_pinned_tokens // block_size) * block_size)
    if num_pinned_tokens and num_pinned_tokens + 2 > longest:
        raise ConfigError(
            f"[prefix_cache] pinned tokens: {num_pinned_tokens} are too many: sequences hold {plan.max_model_len} "
            f"tokens and the KV cache {plan.num_blocks * block_size}, in which the longest must fit beside them"
        )
    if config.model.max_model_len and longest < plan.max_model_len:
        raise ConfigError(
            f"[model] max_model_len = {plan.max_model_len}: {longest} fit into the KV cache beside the "
            f"{num_pinned_tokens} pinned tokens; lower it or raise [engine] kv_cache_gib"
        )
    return dataclasses.replace(plan, max_model_len=longest)


def warm_up(token_ids: list[int], cache: CacheManager, engine: Engine) -> None:
    """Compute a prefix and keep it for good; before any request."""
    if not token_ids or cache.prefix_cache is None:
        return
    prompt = [*token_ids, token_ids[-1]]
    engine.submit(RequestId(0), NOBODY, prompt, SamplingParams(max_tokens=1, temperature=0.0))
    while engine.has_work:
        engine.step()
    node = cache.prefix_cache.match(token_key(prompt), b"")
    cache.prefix_cache.lock(node)
    num_tokens = node.depth * cache.block_size
    level = logging.INFO if num_tokens else logging.WARNING
    log.log(level, "prefix of %d tokens computed, %d of them are pinned", len(token_ids), num_tokens)


def reserve_snapshots(
    config: Config, cache: CacheManager, runner: ModelRunner, on_progress: Callable[[], None]
) -> None:
    """Have the host memory of every snapshot pinned before the first request, on a GPU.

    Pinning what one holds takes tens of milliseconds, in which all streams would stand still.
    """
    snapshots = None if cache.prefix_cache is None else cache.prefix_cache.snapshots
    if snapshots is None or config.engine.runner == "scripted" or choose_device(config.engine.device).type != "cuda":
        return
    what = f"[prefix_cache] host_mib = {config.prefix_cache.host_mib}: pinned memory for recurrent states"
    with memory_for(what, torch.device("cpu"), "lower it"):
        for start in range(0, snapshots.num_snapshots, SNAPSHOTS_PER_BATCH):
            ids = range(start, min(start + SNAPSHOTS_PER_BATCH, snapshots.num_snapshots))
            saves = [StateCopy(SlotId(0), SnapshotId(number), restores=False) for number in ids]
            runner.copy(SchedulerOutput(state_copies=saves))
            on_progress()


def save_all(tier: DiskTier, runner: ModelRunner, grace_s: float) -> None:
    """Write what is in memory only, a bounded number of blocks at a time, for about `grace_s` seconds."""
    deadline = time.monotonic() + grace_s
    saves = tier.remaining_saves()
    while batch := list(islice(saves, SAVES_PER_BATCH)):
        runner.copy(SchedulerOutput(disk_saves=batch))
        tier.flush()
        if time.monotonic() > deadline:
            log.warning("not all of the prefix cache was written within %g s", grace_s)
            break
    tier.close()

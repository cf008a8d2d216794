"""The gpu scheduler's cache beyond its own memory: files on disk, and prefixes that are computed at start.

Knows settings, the model file and the runner; never sequences.
"""

from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path

from sparkinfer.checkpoint.fingerprint import fingerprint
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.config import Config
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.disk_tier import DiskTier
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.model_runner import ModelRunner
from sparkinfer.engine.prefix_disk import MAX_QUEUED_WRITES, PrefixDisk
from sparkinfer.engine.scheduler_output import SchedulerOutput

log = logging.getLogger("gpu_scheduler")

GIB = 1 << 30
SAVES_PER_BATCH = MAX_QUEUED_WRITES // 2


def attach_disk(config: Config, gguf: GGUFFile, cache: CacheManager, runner: ModelRunner, engine: Engine) -> None:
    """Let the prefix cache read and write [prefix_cache] directory, if one is named. Raises ConfigError."""
    settings = config.prefix_cache
    if not settings.directory or cache.prefix_cache is None or config.engine.runner == "scripted":
        return
    # Whatever changes the bytes of a block or state, or what they mean.
    kind = (type(runner).__name__, config.engine.kv_dtype, config.engine.block_size, config.engine.deterministic)
    directory = Path(settings.directory).expanduser()
    disk = PrefixDisk(directory, fingerprint(gguf, *kind), int(settings.disk_gib * GIB))
    tier = cache.disk = DiskTier(cache.prefix_cache, disk)
    engine.before_close = lambda: save_all(tier, runner)
    log.info("prefix cache on disk: %s", directory)


def save_all(tier: DiskTier, runner: ModelRunner) -> None:
    """Write what is in memory only, a bounded number of blocks at a time."""
    saves = tier.remaining_saves()
    while batch := list(islice(saves, SAVES_PER_BATCH)):
        runner.copy(SchedulerOutput(disk_saves=batch))
        tier.flush()
    tier.close()

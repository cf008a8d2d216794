"""How many KV blocks the engine gets, and the longest sequence they can hold. Knows bytes; never tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.checkpoint.memory_plan import weights_f32_bytes
from sparkinfer.config import EngineConfig
from sparkinfer.errors import CheckpointError, ConfigError

# Left to the rest of the machine, and the most that the automatic choice takes: a laptop must stay usable.
AUTO_SHARE_OF_FREE_MEMORY = 0.5
AUTO_MAX_BYTES = 2 << 30
GIB = 1 << 30
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What fits: num_blocks KV blocks of bytes_per_block each; sequences of up to max_model_len tokens."""

    num_blocks: int
    max_model_len: int
    bytes_per_block: int = 0             # 0: blocks without content


def plan_memory(
    config: EngineConfig, *, bytes_per_block: int, max_num_seqs: int, max_model_len: int, model_context: int, free: int,
    is_shared: bool = True,
) -> MemoryPlan:
    """Size the KV pool.

    bytes_per_block:  one block over all attention layers, 0 where the model has none
    max_model_len:    configured limit in tokens, 0 for none; then what does not fit shortens the context
    model_context:    context length of the model in tokens
    free:             bytes that may be had now, weights already loaded
    is_shared:        others need this memory too, so that the automatic choice leaves them a share
    Raises ConfigError when a configured size cannot be held.
    """
    wanted_len = min(max_model_len or model_context, model_context)
    blocks_per_sequence = -(-wanted_len // config.block_size)
    most = blocks_per_sequence * max_num_seqs
    if config.kv_cache_gib:
        budget = int(config.kv_cache_gib * GIB)
        if budget > free:
            raise ConfigError(
                f"[engine] kv_cache_gib = {config.kv_cache_gib}: only {free / GIB:.1f} GiB of memory are free"
            )
    else:
        budget = free
        if is_shared:
            one_sequence = blocks_per_sequence * bytes_per_block
            budget = min(int(free * AUTO_SHARE_OF_FREE_MEMORY), max(AUTO_MAX_BYTES, one_sequence))
    num_blocks = min(most, budget // bytes_per_block) if bytes_per_block else most
    needed = blocks_per_sequence if max_model_len else 1
    if num_blocks < needed:
        raise ConfigError(
            f"[model] max_model_len = {wanted_len}: needs {blocks_per_sequence * bytes_per_block / GIB:.2f} GiB of KV "
            f"cache, {budget / GIB:.2f} GiB are available; lower max_model_len or raise [engine] kv_cache_gib"
        )
    return MemoryPlan(num_blocks, min(wanted_len, num_blocks * config.block_size), bytes_per_block)


def beside_states(free: int, bytes_per_slot: int, num_slots: int) -> int:
    """What is left of `free` bytes beside the recurrent states; raises ConfigError if those are more."""
    needed = bytes_per_slot * num_slots
    if needed > free:
        raise ConfigError(
            f"[scheduler] max_num_seqs = {num_slots}: recurrent states of so many sequences take "
            f"{needed / GIB:.2f} GiB, {free / GIB:.2f} GiB of memory are free; lower it"
        )
    return free - needed


def check_weights_fit(gguf: GGUFFile, hparams: HParams, free: int) -> None:
    """Raises CheckpointError if the weights as float32 are larger than `free` bytes: loading them would end badly."""
    needed = weights_f32_bytes(gguf, hparams)
    if needed > free:
        raise CheckpointError(
            f"{gguf.path}: the weights take {needed / GIB:.2f} GiB as float32, in which they are served here, and "
            f"{free / GIB:.2f} GiB of memory are free"
        )


def free_host_memory() -> int:
    """Bytes the kernel says can be had without swapping (MemAvailable, proc(5)); a container's own limit counts too."""
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    return min(available, _free_in_cgroup(available))


def _free_in_cgroup(default: int) -> int:
    """Room below the memory limit of this process's cgroup (v2), `default` where there is none.

    Cached file pages count as used there, but make way: a model that was just downloaded must not look too large.
    """
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except OSError:
        return default
    cached = sum(int(stat.get(name, 0)) for name in ("active_file", "inactive_file"))
    return default if limit == "max" else max(0, int(limit) - used + cached)

"""A model file made ready to run on a device, as the server does it, with pools just large enough. Knows no cases."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.device import free_memory
from sparkinfer.engine.kv_cache import KVCache, bytes_per_block
from sparkinfer.engine.memory_plan import GIB, check_weights_fit
from sparkinfer.engine.model_runner import ModelRunner
from sparkinfer.engine.state_pool import StatePool
from sparkinfer.engine.torch_model_runner import TorchModelRunner
from sparkinfer.errors import ConfigError
from sparkinfer.model.registry import Model, load_model

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Room:
    """What the runner must hold at once."""

    num_seqs: int
    max_positions: int  # tokens of the longest sequence
    kv_dtype: torch.dtype

    @property
    def num_blocks(self) -> int:
        return self.num_seqs * -(-self.max_positions // BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class Loaded:
    """runner: ready for its first step; backend: what computes, in words; state_passes: as Traffic takes them."""

    runner: ModelRunner
    backend: str
    weights_are_f32: bool
    state_passes: float = 2.0


def load(
    gguf: GGUFFile, hparams: HParams, device: torch.device, room: Room, cache_dir: Path, say: Callable[[str], None]
) -> Loaded:
    """With kernels where they cover the model, on a CPU with as many threads as torch has.

    Raises CheckpointError or ConfigError for what does not fit.
    """
    say(f"loading {gguf.path} onto {device}")
    if device.type == "cuda":
        from sparkinfer.bench import cuda_loading  # brings Triton, which a CPU has no use for

        if cuda_loading.is_covered(gguf, hparams, say):
            runner = cuda_loading.load(gguf, hparams, device, room)
            return Loaded(runner, "kernels", weights_are_f32=False, state_passes=cuda_loading.STATE_PASSES)
    model = _cpu_model(gguf, hparams, cache_dir, say) if device.type == "cpu" else None
    backend = "CPU kernels" if model else "torch, f32"
    if model is None:
        check_weights_fit(gguf, hparams, free_memory(device))
        model = load_model(gguf, hparams, device, lambda done, total: None)
    check_room(room, hparams, free_memory(device))
    kv_cache = KVCache(hparams, room.num_blocks, BLOCK_SIZE, room.kv_dtype, device)
    state_pool = StatePool(hparams, room.num_seqs, device)
    by_torch = TorchModelRunner(
        model, kv_cache, state_pool, room.num_seqs, room.num_blocks // room.num_seqs * BLOCK_SIZE, device
    )
    return Loaded(by_torch, backend, weights_are_f32=backend == "torch, f32")


def _cpu_model(gguf: GGUFFile, hparams: HParams, cache_dir: Path, say: Callable[[str], None]) -> Model | None:
    """None where the CPU kernels do not run the model."""
    if not importlib.util.find_spec("llvmlite"):
        return None
    from kernels.cpu import compile_cache  # a GPU has no use for it

    compile_cache.use_folder(cache_dir / "kernels")
    from sparkinfer.bench import cpu_loading

    return cpu_loading.load(gguf, hparams, torch.get_num_threads()) if cpu_loading.is_covered(hparams, say) else None


def check_room(room: Room, hparams: HParams, free: int) -> None:
    """Raises ConfigError where keys and values do not fit into `free` bytes."""
    needed = room.num_blocks * bytes_per_block(hparams, BLOCK_SIZE, room.kv_dtype)
    if needed > free:
        raise ConfigError(
            f"{room.num_seqs} sequences of {room.max_positions} tokens need {needed / GIB:.2f} GiB of keys and values, "
            f"{free / GIB:.2f} GiB are free; lower -b or -d"
        )

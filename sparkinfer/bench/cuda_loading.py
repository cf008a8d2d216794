"""The kernels' half of loading.py. Knows what covers a model; never cases."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernels.held_updates import HELD
from sparkinfer.bench.loading import BLOCK_SIZE, Room, check_room
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.cuda_model_runner import CudaModelRunner
from sparkinfer.engine.device import free_memory
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.model.cuda.coverage import why_not_covered
from sparkinfer.model.cuda.loader import load_decode_weights
from sparkinfer.model.cuda.pools import CudaPools, RingStatePool

STATE_PASSES = 1 + 1 / HELD  # of one token: a state is read by every step and written by one in so many


def is_covered(gguf: GGUFFile, hparams: HParams, say: Callable[[str], None]) -> bool:
    """Whether the kernels run this checkpoint; says why not."""
    reason = why_not_covered(gguf, hparams)
    if reason is not None:
        say(f"torch's own operations in f32 instead of kernels: {reason}")
    return reason is None


def load(gguf: GGUFFile, hparams: HParams, device: torch.device, room: Room) -> CudaModelRunner:
    """Weights, pools with the dummy's block and slot, graphs of every batch size."""
    weights = load_decode_weights(gguf, hparams, device, lambda done, total: None)
    check_room(room, hparams, free_memory(device))
    pools = CudaPools(
        KVCache(hparams, room.num_blocks + 1, BLOCK_SIZE, room.kv_dtype, device),
        RingStatePool(hparams, room.num_seqs + 1, device),
    )
    max_model_len = room.num_blocks // room.num_seqs * BLOCK_SIZE
    runner = CudaModelRunner(weights, pools, room.num_seqs, max_model_len, device)
    runner.capture(lambda done, total: None)
    return runner

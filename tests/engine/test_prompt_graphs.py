"""A step filled up to a graph's size computes what it computes as it is, and leaves the same behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.cuda_input_batch import CudaInputBatch
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.prompt_graphs import MAX_SEQUENCES, PromptGraphs
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence, SchedulerOutput
from sparkinfer.engine.sequence import BlockId, SlotId
from sparkinfer.model.cuda.loader import load_decode_weights
from sparkinfer.model.cuda.pools import CudaPools, DecodePools, RingStatePool
from sparkinfer.model.cuda.prefill import Prefill
from sparkinfer.sampling_params import SamplingParams
from tests.model.tiny import tiny_gguf

CPU = torch.device("cpu")
NUM_SEQS, NUM_BLOCKS, BLOCK_SIZE = 20, 60, 16


def row(slot: int, start: int, count: int, blocks: range) -> ScheduledSequence:
    admitted = Admission(SamplingParams(max_tokens=1, seed=0), [], ()) if start == 0 else None
    token_ids = [(slot * 31 + start + i) % 250 for i in range(count)]
    return ScheduledSequence(
        None, SlotId(slot), start, count, token_ids, 0, tuple(map(BlockId, blocks)) if start == 0 else (), False,
        admitted,
    )


STEPS = [
    [row(0, 0, 30, range(6)), row(3, 0, 70, range(10, 20))],
    [row(3, 70, 64, range(0)), row(0, 30, 1, range(0)), row(1, 0, 2, range(20, 22))],
    [row(slot, 0, 2, range(20 + slot, 21 + slot)) for slot in range(2, 2 + MAX_SEQUENCES)],
    [row(0, 31, 40, range(0))],
]


def computed(path: Path, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    """Residual streams of all steps, then what the pools hold in the end."""
    gguf = GGUFFile.open(path)
    hparams = HParams.from_gguf(gguf)
    weights = load_decode_weights(gguf, hparams, CPU, lambda done, total: None)
    pools = CudaPools(KVCache(hparams, NUM_BLOCKS + 1, BLOCK_SIZE, torch.bfloat16, CPU),
                      RingStatePool(hparams, NUM_SEQS + 1, CPU))
    inputs = CudaInputBatch(NUM_SEQS, NUM_BLOCKS, BLOCK_SIZE, 240, CPU)
    graphs = PromptGraphs(Prefill(weights, DecodePools.of(pools), CPU), inputs, sizes)
    graphs.capture(lambda done, total: None)
    found = []
    with torch.inference_mode():
        for rows in STEPS:
            inputs.update(SchedulerOutput(scheduled=rows))
            found.append(graphs.run(rows).clone())
    kept = [x[:-BLOCK_SIZE].float() for x in (*pools.kv_cache.k, *pools.kv_cache.v) if x is not None]
    return found + kept + [x[:, :-1] for x in pools.state_pool.pools]


@pytest.mark.parametrize("name", ["qwen35", "qwen3moe"])
def test_what_fills_up_changes_nothing(name: str, tmp_path: Path) -> None:
    path = tiny_gguf(name, tmp_path)
    as_it_is = computed(path, ())
    for found, expected in zip(computed(path, (64, 128, 1024)), as_it_is, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)

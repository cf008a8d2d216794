"""What [engine] deterministic costs on the CPU: step times of one model with and without it, taken in turn.

python ops/bench/cpu_determinism.py [MODEL.gguf] [--threads N]      prints a Markdown table, milliseconds, medians
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import DEFAULT_MODEL, ModelConfig, cache_dir
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.state_pool import StatePool
from sparkinfer.model.forward_batch import ForwardBatch
from sparkinfer.model.registry import Model, load_model

CPU = torch.device("cpu")
BLOCK_SIZE, BLOCKS_PER_SEQUENCE = 16, 64
WORK = {  # name: (sequences, new tokens of each, tokens each has already, repetitions)
    "decode, 1 sequence, context 256": (1, 1, 255, 9),
    "decode, 8 sequences, context 256": (8, 1, 255, 7),
    "prefill, 512 tokens": (1, 512, 0, 3),
}


def batch(num_seqs: int, query_len: int, past: int) -> ForwardBatch:
    context = past + query_len
    tables = torch.arange(num_seqs * BLOCKS_PER_SEQUENCE, dtype=torch.int32).view(num_seqs, -1)
    positions = torch.arange(past, context).repeat(num_seqs)
    owners = torch.arange(num_seqs).repeat_interleave(query_len)
    ends = torch.arange(num_seqs + 1, dtype=torch.int32) * query_len
    return ForwardBatch(
        input_ids=(positions * 7 + owners) % 1000,
        positions=positions,
        cu_seqlens_q=ends,
        context_lens=torch.full((num_seqs,), context, dtype=torch.int32),
        slot_mapping=owners * BLOCKS_PER_SEQUENCE * BLOCK_SIZE + positions,
        block_tables=tables,
        state_slots=torch.arange(num_seqs),
        logits_indices=ends[1:].long() - 1,
        query_lens=[query_len] * num_seqs,
        context_lens_cpu=[context] * num_seqs,
    )


def measure(models: dict[str, Model], num_seqs: int, query_len: int, past: int, repetitions: int) -> dict[str, float]:
    hparams = next(iter(models.values())).hparams
    pools = KVCache(hparams, 8 * BLOCKS_PER_SEQUENCE, BLOCK_SIZE, torch.float32, CPU), StatePool(hparams, 8, CPU)
    step = batch(num_seqs, query_len, past)
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(repetitions + 1):
        for name, model in models.items():
            start = time.perf_counter()
            model.forward(step, *pools)
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    gguf = GGUFFile.open(resolve(arguments.model, cache_dir(ModelConfig())))
    hparams = HParams.from_gguf(gguf)
    models = {
        name: load_model(gguf, hparams, CPU, lambda done, total: None, name == "deterministic")
        for name in ("off", "deterministic")
    }
    print(f"{gguf.path.name}, {arguments.threads} threads, ms a step\n\n| step | off | on | ratio |\n|---|---|---|---|")
    with torch.inference_mode():
        for name, work in WORK.items():
            found = measure(models, *work)
            off, on = found["off"], found["deterministic"]
            print(f"| {name} | {off:.1f} | {on:.1f} | {on / off:.2f} |")


if __name__ == "__main__":
    main()

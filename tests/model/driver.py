"""Drives a model through ForwardBatch step by step, with scattered blocks and slots, for the tests of this folder."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.state_pool import StatePool
from sparkinfer.model.cpu.loader import load_cpu_model
from sparkinfer.model.cpu.model import CpuModel
from sparkinfer.model.forward_batch import ForwardBatch
from sparkinfer.model.registry import Model, load_model

CPU = torch.device("cpu")


def load(path: Path, device: torch.device = CPU) -> Model:
    gguf = GGUFFile.open(path)
    return load_model(gguf, HParams.from_gguf(gguf), device, lambda done, total: None)


def load_cpu(path: Path, num_threads: int = 1) -> CpuModel:
    gguf = GGUFFile.open(path)
    return load_cpu_model(gguf, HParams.from_gguf(gguf), num_threads, lambda done, total: None)


class Driver:
    """Sequences named by any hashable key; every step may extend any of them by any number of tokens."""

    def __init__(
        self,
        model: Model,
        num_blocks: int = 64,
        block_size: int = 16,
        seed: int = 0,
        kv_dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        self.model = model
        self.device = device
        self.block_size = block_size
        self.kv_cache = KVCache(model.hparams, num_blocks, block_size, kv_dtype, device)
        cache = self.kv_cache
        for pool in (*cache.k, *cache.v, *cache.k_scale, *cache.v_scale):
            if pool is not None and pool.is_floating_point():
                pool.fill_(float("nan"))  # a row that is read before it is written shows
        self.state_pool = StatePool(model.hparams, 16, device)
        for state in (*self.state_pool.conv, *self.state_pool.state):
            if state is not None:
                state.fill_(float("nan"))
        rng = random.Random(seed)
        self.free_blocks = rng.sample(range(num_blocks), num_blocks)
        self.free_slots = rng.sample(range(16), 16)
        self.tables: dict[object, list[int]] = {}
        self.lengths: dict[object, int] = {}
        self.slots: dict[object, int] = {}

    def step(self, work: dict[object, list[int]]) -> dict[object, torch.Tensor]:
        """Run the new tokens of each sequence together; returns its logits [query_len, vocab_size]."""
        batch = self.batch(work)
        with torch.inference_mode():
            logits = self.model.forward(batch, self.kv_cache, self.state_pool)
        return dict(zip(work, logits.split(batch.query_lens), strict=True))

    def prefill(self, key: object, tokens: list[int]) -> torch.Tensor:
        """Run one sequence's tokens; returns the logits of the last, [1, vocab_size]."""
        last_row = torch.tensor([len(tokens) - 1], device=self.device)
        batch = dataclasses.replace(self.batch({key: tokens}), logits_indices=last_row)
        with torch.inference_mode():
            return self.model.forward(batch, self.kv_cache, self.state_pool)

    def batch(self, work: dict[object, list[int]]) -> ForwardBatch:
        positions, slot_mapping, query_lens = [], [], []
        for key, tokens in work.items():
            start = self.lengths.get(key, 0)
            end = self.lengths[key] = start + len(tokens)
            table = self.tables.setdefault(key, [])
            while len(table) * self.block_size < end:
                table.append(self.free_blocks.pop())
            if key not in self.slots:
                self.slots[key] = self.free_slots.pop()
            query_lens.append(len(tokens))
            positions += range(start, end)
            size = self.block_size
            slot_mapping += [table[p // size] * size + p % size for p in range(start, end)]
        width = max(len(self.tables[key]) for key in work)
        context_lens = [self.lengths[key] for key in work]
        tables = [self.tables[key] + [0] * (width - len(self.tables[key])) for key in work]

        def tensor(values: list, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=self.device)

        return ForwardBatch(
            input_ids=tensor([token for tokens in work.values() for token in tokens]),
            positions=tensor(positions),
            cu_seqlens_q=tensor([0, *itertools.accumulate(query_lens)], torch.int32),
            context_lens=tensor(context_lens, torch.int32),
            slot_mapping=tensor(slot_mapping),
            block_tables=tensor(tables, torch.int32),
            state_slots=tensor([self.slots[key] for key in work]),
            logits_indices=tensor(list(range(len(positions)))),
            query_lens=query_lens,
            context_lens_cpu=context_lens,
        )


def run_chunks(
    model: Model, tokens: list[int], chunk: int, seed: int = 0, device: torch.device = CPU
) -> torch.Tensor:
    """Logits [len(tokens), vocab_size] of one sequence run `chunk` tokens a step."""
    driver = Driver(model, num_blocks=max(64, -(-len(tokens) // 16)), seed=seed, device=device)
    steps = [driver.step({"only": tokens[i : i + chunk]})["only"] for i in range(0, len(tokens), chunk)]
    return torch.cat(steps)


def some_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1000) for _ in range(count)]


def mixed_and_alone(model: Model, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits of five sequences whose steps are cut and mixed at random, and of each in one step of its own."""
    rng = random.Random(7)
    tokens = {key: some_tokens(rng, rng.randrange(1, 90)) for key in range(5)}
    driver = Driver(model, num_blocks=200, block_size=8, kv_dtype=dtype)
    got: dict[int, list[torch.Tensor]] = {key: [] for key in tokens}
    done = dict.fromkeys(tokens, 0)
    while pending := [key for key in tokens if done[key] < len(tokens[key])]:
        chosen = rng.sample(pending, rng.randrange(1, len(pending) + 1))
        work = {key: tokens[key][done[key] : done[key] + rng.choice([1, 1, 3, 40])] for key in chosen}
        for key, logits in driver.step(work).items():
            got[key].append(logits)
            done[key] += len(logits)
    for key, alone in tokens.items():
        yield torch.cat(got[key]), Driver(model, kv_dtype=dtype).step({key: alone})[key]

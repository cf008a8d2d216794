"""Drives a CudaModelRunner by hand and holds what it says against the float32 model on the CPU."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.cuda_model_runner import CudaModelRunner
from sparkinfer.engine.cuda_step import CudaStepHandle
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence, SchedulerOutput, StateCopy
from sparkinfer.engine.sequence import BlockId, SlotId
from sparkinfer.engine.snapshot_pool import SnapshotId
from sparkinfer.model.cuda.loader import load_decode_weights
from sparkinfer.model.cuda.pools import CudaPools, RingStatePool
from sparkinfer.sampling_params import SamplingParams
from tests.model.driver import load, run_chunks

BLOCK_SIZE = 16
LONG_TOKENS = 2000
REFERENCE_CHUNK = 1024  # tokens that the float32 model takes at once: its scores of all keys must fit in memory


def make_runner(
    path: Path, device: torch.device, max_num_seqs: int, num_blocks: int = 64, kv_dtype: torch.dtype = torch.bfloat16,
    is_deterministic: bool = False,
) -> CudaModelRunner:
    gguf = GGUFFile.open(path)
    hparams = HParams.from_gguf(gguf)
    weights = load_decode_weights(gguf, hparams, device, lambda done, total: None)
    pools = CudaPools(
        KVCache(hparams, num_blocks + 1, BLOCK_SIZE, kv_dtype, device), RingStatePool(hparams, max_num_seqs + 1, device)
    )
    for pool in (*pools.kv_cache.k, *pools.kv_cache.v, *pools.state_pool.pools):
        if pool is not None and pool.is_floating_point():
            pool.fill_(float("nan"))  # what is read before it is written shows
    runner = CudaModelRunner(weights, pools, max_num_seqs, num_blocks * BLOCK_SIZE, device, is_deterministic)
    runner.capture(lambda done, total: None)
    return runner


class RunnerDriver:
    """Sequences named by any hashable key; `step` mixes chunks of prompts with decode rows."""

    def __init__(self, runner: CudaModelRunner, max_num_seqs: int, seed: int = 0) -> None:
        self.runner = runner
        rng = random.Random(seed)
        self.free_blocks = rng.sample(range(runner.num_blocks), runner.num_blocks)
        self.free_slots = rng.sample(range(max_num_seqs), max_num_seqs)
        self.tokens: dict[object, list[int]] = {}       # known: prompt, then sampled
        self.computed: dict[object, int] = {}
        self.logprobs: dict[object, dict[int, torch.Tensor]] = {}  # position of the row -> [vocab_size]
        self._tables: dict[object, list[int]] = {}
        self._slots: dict[object, int] = {}
        self._sampling: dict[object, SamplingParams] = {}
        self._told: set[object] = set()
        self._in_flight: list[tuple[CudaStepHandle, list[tuple[object, int]]]] = []

    def add(self, key: object, prompt: list[int], sampling: SamplingParams) -> None:
        self.tokens[key], self.computed[key], self._tables[key] = list(prompt), 0, []
        self._slots[key], self._sampling[key], self.logprobs[key] = self.free_slots.pop(), sampling, {}

    def remove(self, key: object) -> None:
        """Finish a sequence; its slot and blocks are the next ones to be used again."""
        self._told.discard(key)
        self.free_slots.append(self._slots.pop(key))
        self.free_blocks += self._tables.pop(key)

    def launch(self, work: dict[object, int], copies: tuple[tuple[object, int, bool], ...] = ()) -> None:
        """work: key -> tokens to compute; 0: decode the token sampled last. copies: (key, snapshot, restores)."""
        output = SchedulerOutput(scheduled=[self._row(key, count) for key, count in work.items()])
        output.state_copies = [
            StateCopy(SlotId(self._slots[key]), SnapshotId(snapshot), restores) for key, snapshot, restores in copies
        ]
        output.num_tokens = sum(row.num_tokens for row in output.scheduled)
        sampled = [(key, self.computed[key]) for key, row in zip(work, output.scheduled) if row.samples]
        self._in_flight.append((self.runner.launch(output), sampled))

    def collect(self) -> None:
        """Take the oldest step's tokens."""
        handle, sampled = self._in_flight.pop(0)
        assert handle.is_done(60)
        result = handle.wait()
        assert not result.nan_rows
        for number, (key, position) in enumerate(sampled):
            self.tokens[key].append(result.token_ids[number])
            entry = result.logprobs[number] if result.logprobs else None
            if entry is not None:
                row = torch.empty(len(entry.top_token_ids))
                row[torch.tensor(entry.top_token_ids)] = torch.tensor(entry.top_logprobs)
                self.logprobs[key][position - 1] = row

    def fork(self, key: object, source: object, num_tokens: int) -> None:
        """A new sequence whose first num_tokens (whole blocks) are `source`'s; its state must come from a snapshot."""
        self.add(key, self.tokens[source], self._sampling[source])
        self._tables[key] = self._tables[source][: num_tokens // BLOCK_SIZE]
        self.computed[key] = num_tokens

    def step(self, work: dict[object, int]) -> None:
        self.launch(work)
        self.collect()

    def _row(self, key: object, count: int) -> ScheduledSequence:
        start, table = self.computed[key], self._tables[key]
        num_tokens = count or 1
        is_new = key not in self._told
        self._told.add(key)
        first_new_block = 0 if is_new else len(table)
        while len(table) * BLOCK_SIZE < start + num_tokens:
            table.append(self.free_blocks.pop())
        new_blocks = tuple(BlockId(block) for block in table[first_new_block:])
        token_ids = self.tokens[key][start : start + num_tokens] if count else None
        samples = not count or start + num_tokens == len(self.tokens[key])
        admitted = Admission(self._sampling[key], self.tokens[key], ()) if is_new else None
        self.computed[key] = start + num_tokens
        return ScheduledSequence(
            None, SlotId(self._slots[key]), start, num_tokens, token_ids, first_new_block, new_blocks, samples, admitted
        )


def disagreement(
    path: Path, tokens: list[int], logprobs: dict[int, torch.Tensor], margin: float = 0.05
) -> tuple[float, int]:
    """(mean KL divergence from the float32 model, rows whose best token differs though it wins by more than `margin`).

    tokens:   a whole sequence; logprobs: position -> what the runner said of the next token
    """
    reference = _reference(path, tuple(tokens))
    divergences, wrong = [], 0
    for position, row in logprobs.items():
        expected = reference[position]
        divergences.append(float((expected.exp() * (expected - row)).sum()))
        best, second = expected.topk(2).values.tolist()
        wrong += best - second > margin and int(row.argmax()) != int(expected.argmax())
    return sum(divergences) / len(divergences), wrong


@lru_cache(maxsize=1)  # a prompt in one piece and in chunks is compared with the same numbers
def _reference(path: Path, tokens: tuple[int, ...]) -> torch.Tensor:
    """Log-probabilities [len(tokens), vocab_size] by the float32 model.

    A long text takes a CPU half a minute; the card computes the same numbers (tests/gpu/test_model.py).
    """
    is_long = len(tokens) > LONG_TOKENS and torch.cuda.is_available()
    device = torch.device("cuda", 0) if is_long else torch.device("cpu")
    return run_chunks(load(path, device), list(tokens), REFERENCE_CHUNK, device=device).log_softmax(-1).cpu()

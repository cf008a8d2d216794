"""A model whose next token depends on every token before it, and TorchModelRunner under an Engine over it."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import torch

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.engine.torch_model_runner import TorchModelRunner
from sparkinfer.request import RequestId
from tests.engine.engines import sampling

CPU = torch.device("cpu")
VOCAB_SIZE = 32
PRIME = 2_147_483_647


class TokenPool:
    """Stands for KVCache: one number a row, the token itself; rows that were never written are negative."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.rows = torch.full((num_blocks * block_size,), -1, dtype=torch.int64)
        self.pools = [self.rows]


class HashState:
    """Stands for StatePool: a recurrent hash a slot, garbage until a sequence starts in it."""

    def __init__(self, num_slots: int) -> None:
        self.hashes = torch.full((num_slots,), 123_456, dtype=torch.int64)
        self.pools = [self.hashes[None]]
        self.bytes_per_slot = self.hashes.itemsize


class HashModel:
    """Logits are a function of the hash of the whole prefix, found twice: from the pool and from the state."""

    def __init__(self) -> None:
        self.hparams = SimpleNamespace(vocab_size=VOCAB_SIZE)
        self.fail: Exception | None = None
        self.has_failed = False
        self.bad_token: int | None = None
        self.threads: set[str] = set()

    def forward(self, batch, kv_cache, state_pool) -> torch.Tensor:
        return self.head(self.hidden_states(batch, kv_cache, state_pool)[batch.logits_indices])

    def hidden_states(self, batch, kv_cache, state_pool) -> torch.Tensor:
        """The hash at each token, -1 at the bad one."""
        self.threads.add(threading.current_thread().name)
        if self.fail is not None:
            error, self.fail, self.has_failed = self.fail, None, True
            raise error
        assert batch.query_lens == batch.cu_seqlens_q.diff().tolist()
        assert batch.context_lens_cpu == batch.context_lens.tolist()
        kv_cache.rows[batch.slot_mapping] = batch.input_ids
        hashes = torch.zeros_like(batch.input_ids)
        for i, (query_len, context_len) in enumerate(zip(batch.query_lens, batch.context_lens_cpu)):
            first = int(batch.cu_seqlens_q[i])
            positions = torch.arange(context_len)
            assert batch.positions[first : first + query_len].tolist() == positions[-query_len:].tolist()
            blocks = batch.block_tables[i, positions // kv_cache.block_size].long()
            tokens = kv_cache.rows[blocks * kv_cache.block_size + positions % kv_cache.block_size]
            slot = batch.state_slots[i]
            state = 7 if query_len == context_len else int(state_pool.hashes[slot])
            for j, token in enumerate(batch.input_ids[first : first + query_len].tolist()):
                state = (state * 48_271 + token + 1) % PRIME
                hashes[first + j] = state
            state_pool.hashes[slot] = state
            # After a failed step, the step launched behind it computes rows of sequences that are gone.
            assert self.has_failed or state == prefix_hash(tokens.tolist())
        if self.bad_token is not None:
            hashes[batch.input_ids == self.bad_token] = -1
        return hashes

    def head(self, hashes: torch.Tensor) -> torch.Tensor:
        return logits_of(hashes).masked_fill(hashes[:, None] < 0, float("nan"))


def prefix_hash(tokens: list[int]) -> int:
    state = 7
    for token in tokens:
        assert token >= 0
        state = (state * 48_271 + token + 1) % PRIME
    return state


def logits_of(hashes: torch.Tensor) -> torch.Tensor:
    """[num_rows] -> [num_rows, VOCAB_SIZE] f32, spread over a few nats."""
    mixed = (hashes[:, None] * (2 * torch.arange(VOCAB_SIZE) + 1) * 2_654_435_761) >> 7
    return (mixed % 1009).float() / 200


class ListSink:
    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.logprobs: dict[tuple[int, int], list[object]] = {}
        self.scores: dict[tuple[int, int], list[tuple[int, object]]] = {}
        self.finished: dict[tuple[int, int], object] = {}

    def publish(self, events: StepEvents) -> None:
        for sequence, token_ids, scores in events.scores:
            key = (sequence.request_id, sequence.choice)
            assert key not in self.finished
            assert key not in self.tokens, "a score behind a token"
            self.scores.setdefault(key, []).extend(zip(token_ids, scores, strict=True))
        logprobs = events.logprobs or [None] * len(events.sequences)
        for sequence, token_id, entry in zip(events.sequences, events.token_ids, logprobs, strict=True):
            key = (sequence.request_id, sequence.choice)
            self.tokens.setdefault(key, []).append(token_id)
            self.logprobs.setdefault(key, []).append(entry)
        self.finished |= {(sequence.request_id, sequence.choice): sequence for sequence in events.finished}


class Rig:
    def __init__(
        self, num_blocks=64, block_size=4, overlap=True, max_num_seqs=8, model=None, swap_space=None, **limits
    ) -> None:
        self.model = model or HashModel()
        self.runner = TorchModelRunner(
            self.model, TokenPool(num_blocks, block_size), HashState(max_num_seqs), max_num_seqs, 200, CPU
        )
        config = SchedulerConfig(max_num_seqs=max_num_seqs, **limits)
        self.scheduler = Scheduler(
            config, CacheManager(BlockManager(num_blocks, block_size), swap_space=swap_space), 200
        )
        self.sink = ListSink()
        self.engine = Engine(self.scheduler, self.runner, self.sink, overlap)

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *exception) -> None:
        self.engine.close()

    def run(self, requests, steps_between: int = 0) -> ListSink:
        for request_id, (prompt, controls) in enumerate(requests):
            self.engine.submit(RequestId(request_id), 0, prompt, sampling(**controls))
            for _ in range(steps_between):
                self.engine.step()
        while self.engine.has_work:
            self.engine.step()
        return self.sink


CONTROLS = [
    {"temperature": 0.0},
    {"temperature": 0.0, "frequency_penalty": 0.8, "presence_penalty": 0.3},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 1.2, "top_p": 0.8, "seed": 4, "logprobs": 2},
    {"temperature": 0.7, "top_k": 5, "min_p": 0.05, "seed": 2**63 + 1, "repetition_penalty": 1.3},
    {"temperature": 0.0, "logit_bias": {3: 2.0, 9: -50.0}, "logprobs": 0},
]


def make_requests(count: int, seed: int) -> list[tuple[list[int], dict[str, object]]]:
    rng = np.random.default_rng(seed)
    return [
        (
            rng.integers(1, VOCAB_SIZE, rng.integers(1, 40)).tolist(),
            {"max_tokens": int(rng.integers(1, 30)), **CONTROLS[i % len(CONTROLS)]},
        )
        for i in range(count)
    ]


def solo(requests) -> list[tuple[list[int], list[object]]]:
    """Each request by itself, its prompt in one piece, without overlap."""
    results = []
    for request in requests:
        with Rig(num_blocks=64, overlap=False) as rig:
            sink = rig.run([request])
            results.append((sink.tokens.get((0, 0), []), sink.logprobs.get((0, 0), [])))
    return results


REQUESTS = make_requests(12, seed=5)

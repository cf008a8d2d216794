"""A model that a CPU runs on its quantised weights: one compiled call per pass of at most MAX_ROWS rows.

Knows steps and pools; the program is written elsewhere.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.attention import attend_kernel
from kernels.cpu.rope_store import POOL_KINDS
from sparkinfer.engine.kv_cache import KV_DTYPES, KVCache
from sparkinfer.engine.state_pool import StatePool
from sparkinfer.model.cpu.program import Program
from sparkinfer.model.cpu.step_plan import StepRecord
from sparkinfer.model.cpu.thread_choice import ThreadChoice
from sparkinfer.model.cpu.thread_team import ThreadTeam
from sparkinfer.model.forward_batch import ForwardBatch
from sparkinfer.model.step import reset_new_sequences
from sparkinfer.model.transformer import Transformer

KIND_OF = {dtype: name for name, dtype in KV_DTYPES.items()}
MAX_ROWS = 256  # rows of a pass: their activations stay in the cache


class CpuModel:
    """`shell` is the architecture without its matrices: it embeds tokens and finishes logits."""

    def __init__(
        self, shell: Transformer, program: Program, stream: Tensor, team: ThreadTeam, embeds: bool
    ) -> None:
        """stream: [MAX_ROWS, hidden_size] f32, the residual stream that the program works on.

        embeds: the program does, not the shell
        """
        self.hparams = shell.hparams
        self._shell, self._program, self._stream, self._team = shell, program, stream, team
        self._record = StepRecord(shell.hparams, shell.ropes, team.num_threads)
        self._embeds = embeds
        self._threads = ThreadChoice(team.num_threads)
        self._pools: tuple[KVCache, StatePool] | None = None

    def forward(self, batch: ForwardBatch, kv_cache: KVCache, state_pool: StatePool) -> Tensor:
        """As Model.forward, logits_indices ascending. A row's logits depend, to the last bit, on its sequence alone."""
        self._start(batch, kv_cache, state_pool)
        num_rows, num_logits = batch.input_ids.numel(), batch.logits_indices.numel()
        logits = torch.empty((num_logits, self.hparams.vocab_size))
        if num_rows <= MAX_ROWS:
            part = self._program.whole if num_logits else self._program.body
            self._run(part, batch, range(num_rows), logits.data_ptr(), range(num_logits))
            return self._shell.head(logits)
        logit_rows = batch.logits_indices.numpy()
        for rows in _passes(num_rows):
            start, stop = np.searchsorted(logit_rows, (rows.start, rows.stop)).tolist()
            part = self._program.whole if start < stop else self._program.body
            self._run(part, batch, rows, logits[start:].data_ptr(), range(start, stop))
        return self._shell.head(logits)

    def hidden_states(self, batch: ForwardBatch, kv_cache: KVCache, state_pool: StatePool) -> Tensor:
        """As Model.hidden_states."""
        self._start(batch, kv_cache, state_pool)
        hidden = torch.empty(len(batch.input_ids), self.hparams.hidden_size)
        for rows in _passes(len(hidden)):
            self._run(self._program.body, batch, rows)
            hidden[rows.start : rows.stop] = self._stream[: len(rows)]
        return hidden

    def head(self, x: Tensor) -> Tensor:
        """As Model.head."""
        logits = torch.empty(len(x), self.hparams.vocab_size)
        for rows in _passes(len(x)):
            self._stream[: len(rows)] = x[rows.start : rows.stop]
            self._record.describe_head(len(rows), logits[rows.start :].data_ptr())
            self._team.run(self._program, self._program.head, self._record.address)
        return self._shell.head(logits)

    def _start(self, batch: ForwardBatch, kv_cache: KVCache, state_pool: StatePool) -> None:
        self.use(kv_cache, state_pool)
        if state_pool.pools:
            reset_new_sequences(batch, state_pool)

    def _run(
        self, part: range, batch: ForwardBatch, rows: range, logits: int = 0, logit_rows: range = range(0)
    ) -> None:
        assert self._pools is not None
        num_rows = len(rows)
        if not self._embeds:
            self._stream[:num_rows] = self._shell.embed(batch.input_ids[rows.start : rows.stop])
        self._record.describe(batch, rows, self._pools[0].block_size, logits, logit_rows)
        num_threads = self._threads.choose(num_rows)
        started = time.perf_counter()
        self._team.run(self._program, part, self._record.address, num_threads)
        self._threads.record(num_rows, num_threads, time.perf_counter() - started)

    def use(self, kv_cache: KVCache, state_pool: StatePool) -> None:
        """Write the pools' addresses into the program, once for each pair of pools; `forward` sees to it, too."""
        if self._pools is not None and self._pools[0] is kv_cache and self._pools[1] is state_pool:
            return
        self._pools = kv_cache, state_pool
        kind, num_layers = KIND_OF[kv_cache.dtype], len(kv_cache.k)
        self._program.fill({
            "attend": [attend_kernel(kind).compile()] * num_layers, "kv_kind": [POOL_KINDS[kind]] * num_layers,
            "k": _addresses(kv_cache.k), "v": _addresses(kv_cache.v),
            "k_scale": _addresses(kv_cache.k_scale), "v_scale": _addresses(kv_cache.v_scale),
            "conv": _addresses(state_pool.conv), "conv_bytes": _slot_bytes(state_pool.conv),
            "state": _addresses(state_pool.state), "state_bytes": _slot_bytes(state_pool.state),
        })


def _passes(num_rows: int) -> list[range]:
    return [range(first, min(first + MAX_ROWS, num_rows)) for first in range(0, num_rows, MAX_ROWS)]


def _addresses(pools: list[Tensor | None]) -> list[int]:
    return [0 if pool is None else pool.data_ptr() for pool in pools]


def _slot_bytes(pools: list[Tensor | None]) -> list[int]:
    return [0 if pool is None else pool[0].numel() * pool.element_size() for pool in pools]

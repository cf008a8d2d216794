"""Owns the host copies of preempted sequences: keys, values and recurrent state. Knows rows; never whose they are."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.scheduler_output import SwapId, SwapIn, SwapOut
from sparkinfer.engine.sequence import BlockId
from sparkinfer.engine.state_pool import StatePool


class SwapStore:
    """Used by the thread that runs steps, in launch order; the Scheduler bounds the bytes.

    On an accelerator the copies are asynchronous, to pinned memory and on the stream of the forward, which orders them
    with it and with each other.
    """

    def __init__(self, kv_cache: KVCache, state_pool: StatePool) -> None:
        self._kv_pools = [pool.view(kv_cache.num_blocks, -1) for pool in kv_cache.pools]
        self._state_pools = state_pool.pools
        self._saved: dict[SwapId, list[Tensor]] = {}

    def drop(self, swap_ids: Iterable[SwapId]) -> None:
        """Forget what ended while it was out."""
        for swap_id in swap_ids:
            self._saved.pop(swap_id, None)

    def swap_out(self, orders: Iterable[SwapOut]) -> None:
        """Copy blocks and state to the host. Raises what torch raises when there is no memory for them."""
        for order in orders:
            saved = [_to_host(pool[self._index(order.blocks, pool)]) for pool in self._kv_pools]
            saved += [_to_host(pool[:, order.slot]) for pool in self._state_pools]
            self._saved[order.swap_id] = saved

    def swap_in(self, orders: Iterable[SwapIn]) -> None:
        """Copy blocks and state back, and forget the host's copies.

        There is none where the step that should have made it failed; the sequence ends for that, and gets nothing.
        """
        for order in orders:
            saved = self._saved.pop(order.swap_id, None)
            if saved is None:
                continue
            copies = iter(saved)
            for pool in self._kv_pools:
                pool[self._index(order.blocks, pool)] = next(copies).to(pool.device, non_blocking=True)
            for pool in self._state_pools:
                pool[:, order.slot].copy_(next(copies), non_blocking=True)

    @property
    def num_entries(self) -> int:
        return len(self._saved)

    def _index(self, blocks: tuple[BlockId, ...], pool: Tensor) -> Tensor:
        return torch.tensor(blocks, dtype=torch.int64).to(pool.device, non_blocking=True)


def _to_host(rows: Tensor) -> Tensor:
    host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=rows.is_cuda)
    return host.copy_(rows, non_blocking=True)

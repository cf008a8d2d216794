"""(token, expert) pairs sorted by expert, cut into runs that one program takes; nothing reaches the host.

A program per expert counts all pairs and then lists its own in their order, so the result is always the same.
Bytes moved: the expert ids twice per expert (from L2); 8 bytes per pair and 16 per run written.
Reference:   kernels/reference/grouped_experts.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

MAX_CHUNK = 8192  # pairs that a program looks at at once


@dataclass(frozen=True, slots=True)
class Runs:
    """Sorted pairs; pair = token * top_k + slot.

    order:   [num_pairs] int32, the pair at each sorted place
    table:   [most, 4] int32: expert, first sorted place, pairs, 0 of each run
    count:   [1] int32, runs that there are
    length:  pairs that a run has at most
    """

    order: Tensor
    table: Tensor
    count: Tensor
    length: int

    @property
    def most(self) -> int:
        return self.table.shape[0]

    @classmethod
    def empty(cls, num_pairs: int, num_experts: int, length: int, device: torch.device) -> Runs:
        """Room for the runs of any choice of experts."""

        def plane(*shape: int) -> Tensor:
            return torch.empty(*shape, dtype=torch.int32, device=device)

        most = min(num_pairs, num_experts) + num_pairs // length
        return cls(plane(num_pairs), plane(most, 4), plane(1), length)


@triton.jit(do_not_specialize=["num_pairs"])
def _sort_tokens_kernel(
    ids_ptr, order_ptr, runs_ptr, count_ptr, num_pairs, E: tl.constexpr, BINS: tl.constexpr, LENGTH: tl.constexpr,
    CHUNK: tl.constexpr, PDL: tl.constexpr,
):
    expert = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    counts = tl.zeros((BINS,), tl.int32)
    for start in tl.range(0, num_pairs, CHUNK):
        place = start + tl.arange(0, CHUNK)
        inside = place < num_pairs
        ids = tl.load(ids_ptr + place, mask=inside, other=0)
        counts += tl.histogram(ids, BINS, mask=inside)
    bins = tl.arange(0, BINS)
    before = bins < expert
    runs = (counts + LENGTH - 1) // LENGTH
    mine = tl.sum(tl.where(bins == expert, counts, 0), axis=0)
    first = tl.sum(tl.where(before, counts, 0), axis=0)
    first_run = tl.sum(tl.where(before, runs, 0), axis=0)
    for run in tl.range(0, tl.cdiv(mine, LENGTH)):
        target = runs_ptr + (first_run + run) * 4
        tl.store(target, expert)
        tl.store(target + 1, first + run * LENGTH)
        tl.store(target + 2, tl.minimum(mine - run * LENGTH, LENGTH))
        tl.store(target + 3, 0)
    if expert == E - 1:
        tl.store(count_ptr, tl.sum(runs, axis=0))
    if mine > 0:
        for start in tl.range(0, num_pairs, CHUNK):
            place = start + tl.arange(0, CHUNK)
            ids = tl.load(ids_ptr + place, mask=place < num_pairs, other=-1)
            found = (ids == expert).to(tl.int32)
            tl.store(order_ptr + first + tl.cumsum(found, axis=0) - 1, place, mask=found != 0)
            first += tl.sum(found, axis=0)


def sort_tokens(expert_ids: Tensor, num_experts: int, runs: Runs, pdl: bool = False) -> None:
    """Sort, stably.

    expert_ids: [num_tokens, top_k] int32, contiguous, each below num_experts
    runs:       written
    """
    options = {"launch_pdl": True} if pdl else {}
    num_pairs = expert_ids.numel()
    chunk = min(MAX_CHUNK, max(32, triton.next_power_of_2(num_pairs)))
    _sort_tokens_kernel[(num_experts,)](
        expert_ids, runs.order, runs.table, runs.count, num_pairs, E=num_experts,
        BINS=max(32, triton.next_power_of_2(num_experts)), LENGTH=runs.length, CHUNK=chunk, PDL=pdl,
        num_warps=4 if chunk < MAX_CHUNK else 8,
        **options,
    )

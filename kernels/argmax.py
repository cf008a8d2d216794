"""ids[m] = argmax of a row of logits, the lowest index among equals; two launches, fixed order.

Bytes moved: the logits once. Reference: torch.argmax's contract, kernels/reference/argmax.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_CHUNK = 2048  # logits a program of the first launch compares


@triton.jit
def _partial_kernel(x_ptr, best_ptr, index_ptr, num_cols, PARTS: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr):
    part = tl.program_id(0)
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    offs = part * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(x_ptr + m.to(tl.int64) * num_cols + offs, mask=offs < num_cols, other=float("-inf"))
    best = tl.max(x, axis=0)
    tl.store(best_ptr + m * PARTS + part, best)
    tl.store(index_ptr + m * PARTS + part, tl.min(tl.where(x == best, offs, 1 << 30), axis=0))


@triton.jit
def _final_kernel(best_ptr, index_ptr, ids_ptr, PARTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    m = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    offs = tl.arange(0, BLOCK)
    best = tl.load(best_ptr + m * PARTS + offs, mask=offs < PARTS, other=float("-inf"))
    index = tl.load(index_ptr + m * PARTS + offs, mask=offs < PARTS, other=1 << 30)
    winner = tl.min(tl.where(best == tl.max(best, axis=0), index, 1 << 30), axis=0)
    tl.store(ids_ptr + m, winner.to(tl.int64))


def argmax(logits: Tensor, ids: Tensor, pdl: bool = False) -> None:
    """Greedy choice.

    logits:  [num_rows, vocab_size] f32 without NaN, rows contiguous
    ids:     [num_rows] int64, written
    """
    num_rows, num_cols = logits.shape
    parts = triton.cdiv(num_cols, _CHUNK)
    best = torch.empty(num_rows, parts, dtype=torch.float32, device=logits.device)
    index = torch.empty(num_rows, parts, dtype=torch.int32, device=logits.device)
    options = {"launch_pdl": True} if pdl else {}
    _partial_kernel[(parts, num_rows)](logits, best, index, num_cols, PARTS=parts, CHUNK=_CHUNK, PDL=pdl, **options)
    _final_kernel[(num_rows,)](best, index, ids, PARTS=parts, BLOCK=triton.next_power_of_2(parts), PDL=pdl, **options)

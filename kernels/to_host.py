"""A small array from the device into pinned host memory, by stores instead of the copy engine.

The copy engine takes one copy to the host at a time, and a snapshot of recurrent state keeps it for a millisecond: a
step's tokens would wait behind it, and the next step behind them.
Reference:   torch.Tensor.copy_
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit(do_not_specialize=["count"])
def _to_host_kernel(source_ptr, target_ptr, count, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target_ptr + offs, tl.load(source_ptr + offs, mask=offs < count), mask=offs < count)


def to_host(source: Tensor, target: Tensor) -> None:
    """source: contiguous, on a CUDA device; target: of its shape and type, pinned, valid once the stream is here."""
    count = source.numel()
    if count:
        _to_host_kernel[(triton.cdiv(count, BLOCK),)](source, target, count, BLOCK=BLOCK)

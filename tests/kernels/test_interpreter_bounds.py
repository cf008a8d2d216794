"""That the interpreter, as tests run it, notices a kernel that reads or writes beside its tensors."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from kernels.launch import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels run on a card")


@triton.jit
def _copy_kernel(x_ptr, y_ptr, N: tl.constexpr, READ: tl.constexpr, WRITTEN: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs, mask=offs < READ, other=0.0)
    tl.store(y_ptr + offs, x, mask=offs < WRITTEN)


@pytest.mark.parametrize(("read", "written", "message"), [(9, 8, "a load of 4 bytes at byte 32 of a tensor of 32"),
                                                          (8, 9, "a store of 4 bytes at byte 32 of a tensor of 32")])
def test_one_number_too_many(read: int, written: int, message: str) -> None:
    tensors = torch.zeros(8), torch.zeros(8)
    with pytest.raises(InterpreterError, match=message):
        _copy_kernel[(1,)](*tensors, 16, read, written)


def test_what_is_masked_is_not_touched() -> None:
    x, y = torch.randn(8), torch.zeros(8)
    _copy_kernel[(1,)](x, y, 16, 8, 8)
    assert torch.equal(x, y)

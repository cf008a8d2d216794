"""Products of prompts whose bits do not depend on how many rows there are, by cuBLAS where it happens to give them.

cuBLAS chooses a kernel by the number of rows. Most of its kernels sum along the columns as `half_products` does and
then give the same bits; some cut the columns into parts. The choice follows sizes alone, never numbers, so it is tried
once for each size of a step that comes often. Knows sizes; never layers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from kernels.half_products import half_products

Product = Callable[[Tensor, Tensor, Tensor], None]
PIECE = 512  # rows compared at a time


class RowProducts:
    """x W^T, [num_tokens, num_rows] f32, of x [num_tokens, num_cols] and W [num_rows, num_cols] f16."""

    def __init__(self, fast: Product | None = None) -> None:
        """fast: the library's product: x, W, what is written"""
        self._fast = library_product if fast is None else fast
        self._sizes: dict[tuple[int, int], set[int]] = {}

    def settle(self, num_tokens: int, shapes: Collection[tuple[int, int]], device: torch.device) -> None:
        """Try matrices of `shapes` (num_rows, num_cols) with so many tokens; waits for the device."""
        generator = torch.Generator(device).manual_seed(num_tokens)
        for num_rows, num_cols in shapes:
            x, weight = (
                torch.randn(rows, num_cols, dtype=torch.float16, device=device, generator=generator)
                for rows in (num_tokens, num_rows)
            )
            found = torch.empty(num_tokens, num_rows, device=device)
            self._fast(x, weight, found)
            pieces = zip(torch.split(x, PIECE), torch.split(found, PIECE))
            if all(torch.equal(half_products(piece, weight), rows) for piece, rows in pieces):
                self._sizes.setdefault((num_rows, num_cols), set()).add(num_tokens)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Pieces of the largest size that is settled, and a rest. x and weight contiguous."""
        sizes = self._sizes.get((weight.shape[0], weight.shape[1]))
        num_tokens = x.shape[0]
        if not sizes or num_tokens < min(sizes):
            return half_products(x, weight)
        out = torch.empty(num_tokens, weight.shape[0], device=x.device)
        done, size = 0, max(size for size in sizes if size <= num_tokens)
        while num_tokens - done >= size:
            self._fast(x[done : done + size], weight, out[done : done + size])
            done += size
        if num_tokens - done in sizes:
            self._fast(x[done:], weight, out[done:])
        elif done < num_tokens:
            half_products(x[done:], weight, out[done:])
        return out


def library_product(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """out = x W^T by cuBLAS."""
    torch.mm(x, weight.T, out_dtype=torch.float32, out=out)

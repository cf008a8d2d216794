"""Matrix products whose rows do not depend on each other to the last bit: x -> x W^T in pieces of checked sizes.

A matrix library adds the products of one output in an order that follows from the shape: one row goes through other
code than two, a remainder of rows through other code than a full tile, and threads may cut a matrix between rows. So
rows are laid out in pieces of a few sizes, padded with zeros, and each size is tried for each shape before its first
use: only sizes whose rows come out with the same bits wherever they lie and whatever lies beside them are kept.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE_ROWS = (4, 8, 16, 32, 64)
LARGEST_PIECE = PIECE_ROWS[-1]
ALIGNMENT_BYTES = 64  # MKL promises the same bits from run to run for operands aligned to this


class RowsDependError(Exception):
    """No size of pieces gives rows that depend on themselves alone."""


class InvariantMatmul:
    """Products by weight matrices (`linear`) and by batches of matrices (`bmm`); knows checked sizes by shape.

    torch.set_num_threads must not change between two uses.
    """

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, ...], tuple[int, ...]] = {}

    def check(self, weight: Tensor) -> None:
        """Find the sizes for a weight [out_features, in_features] ahead of its use; raises RowsDependError."""
        shape = tuple(weight.shape)
        if shape not in self._pieces:
            self._pieces[shape] = _row_pieces(weight)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x weight^T + bias.

        x:      [num_rows, in_features] f32
        weight: [out_features, in_features] f32
        """
        self.check(weight)
        num_rows = x.shape[0]
        num_padded = self._padded(num_rows, self._pieces[tuple(weight.shape)])
        if num_padded != num_rows or not x.is_contiguous() or x.data_ptr() % ALIGNMENT_BYTES:
            x = F.pad(x, (0, 0, 0, num_padded - num_rows)) if num_padded != num_rows else x.clone()
        out = x.new_empty(num_padded, weight.shape[0])
        for start in range(0, num_padded, LARGEST_PIECE):
            torch.mm(x[start : start + LARGEST_PIECE], weight.t(), out=out[start : start + LARGEST_PIECE])
        out = out[:num_rows]
        return out if bias is None else out + bias

    def bmm_rows(self, num_rows: int, inner: int, outer: int, is_transposed: bool) -> int:
        """How many rows, num_rows <= LARGEST_PIECE of them wanted, a torch.bmm by matrices [inner, outer] must take.

        is_transposed: the matrices are views of contiguous [outer, inner] ones
        """
        shape = (inner, outer, int(is_transposed))
        if shape not in self._pieces:
            self._pieces[shape] = _batched_pieces(inner, outer, is_transposed)
        return self._padded(num_rows, self._pieces[shape])

    def _padded(self, num_rows: int, pieces: tuple[int, ...]) -> int:
        full = num_rows - num_rows % LARGEST_PIECE
        rest = num_rows - full
        return full if rest == 0 else full + next(size for size in pieces if size >= rest)


def _row_pieces(weight: Tensor) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(LARGEST_PIECE, weight.shape[1], generator=generator).to(weight.device)
    return _kept_sizes(lambda rows: rows @ weight.t(), x, generator, tuple(weight.shape))


def _batched_pieces(inner: int, outer: int, is_transposed: bool) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(3, outer, inner, generator=generator).transpose(1, 2)
    matrices = matrices if is_transposed else matrices.contiguous()
    x = torch.randn(LARGEST_PIECE, inner, generator=generator)

    def product(rows: Tensor) -> Tensor:
        """By one matrix; NaN, which equals nothing, where it comes out otherwise among several."""
        alone = torch.bmm(rows[None], matrices[:1])[0]
        among_others = torch.bmm(rows.expand(3, -1, -1).contiguous(), matrices)[0]
        return alone if torch.equal(alone, among_others) else torch.full_like(alone, float("nan"))

    return _kept_sizes(product, x, generator, (inner, outer))


def _kept_sizes(
    product: Callable[[Tensor], Tensor], x: Tensor, generator: torch.Generator, shape: tuple[int, ...]
) -> tuple[int, ...]:
    expected = product(x)
    kept = []
    for size in PIECE_ROWS:
        orders = [torch.randperm(LARGEST_PIECE, generator=generator)[:size].to(x.device) for _ in range(3)]
        padded = x[orders[0]]
        padded[size // 2 :] = 0
        is_same = torch.equal(product(padded)[: size // 2], expected[orders[0]][: size // 2])
        if is_same and all(torch.equal(product(x[order]), expected[order]) for order in orders):
            kept.append(size)
    if LARGEST_PIECE not in kept:
        raise RowsDependError(f"rows of a product by a matrix of shape {shape} depend on each other")
    return tuple(kept)

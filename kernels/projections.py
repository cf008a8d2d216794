"""A layer's projections for any number of rows: up to eight by the kernels made for them, 16 to 128 by `many_rows`,
16-bit numbers by the vendor's product, small f32 matrices by `plain_rows`.

Knows what takes what; owns no kernel. Matrices that none of these reads are taken eight rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels import plain_rows, swiglu_rows
from kernels.many_rows import fits, many_rows, num_splits
from kernels.normed_rows import NormedRows
from kernels.pack_halves import pack_halves
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight
from kernels.quant_gemv import quant_gemv
from kernels.quant_gemv_residual import quant_gemv_residual
from kernels.quant_swiglu import quant_swiglu
from kernels.split_sums import add_parts, add_parts_residual, add_parts_swiglu, add_parts_swiglu_packed

FEW = 8  # rows that the other kernels take at once
HALVES = {QuantFormat.F16: torch.float16, QuantFormat.BF16: torch.bfloat16}


class Rows:
    """An activation in the forms that products want, each made once."""

    def __init__(self, x: QuantActivation, span: int, eps: float, pdl: bool) -> None:
        """span: columns that share an RMS factor, 0 for none."""
        self._arguments = (x, span, eps, pdl)
        self._forms: dict[torch.dtype | None, Tensor] = {}

    def form(self, in_order_as: torch.dtype | None) -> Tensor:
        """As `pack_halves` makes it."""
        if in_order_as not in self._forms:
            self._forms[in_order_as] = pack_halves(*self._arguments, in_order_as)
        return self._forms[in_order_as]

    def takes(self, weight: QuantWeight) -> bool:
        """Whether `parts` has a product for it."""
        x = self._arguments[0]
        if weight.format == QuantFormat.F32:
            has_plain = x.plain is not None and self._arguments[1] in (0, x.num_cols)
            return x.num_tokens > FEW and has_plain and plain_rows.fits(weight)
        is_half = weight.format in HALVES and x.num_cols % 128 == 0
        return x.num_tokens > FEW and (is_half or fits(weight, x.num_tokens))

    def parts(self, weight: QuantWeight) -> Tensor:
        """[num_splits, num_tokens, num_rows] f32, still to be added up."""
        if weight.format == QuantFormat.F32:
            x, span, eps, pdl = self._arguments
            assert x.plain is not None
            return plain_rows.plain_rows(x.plain, weight, x.square_sums if span else None, eps, pdl)
        if weight.format in HALVES:
            return _half_product(self.form(HALVES[weight.format]), weight.quants)[None]
        return product_parts(self.form(None), weight, self._arguments[3])


def project(
    x: QuantActivation, weights: Sequence[QuantWeight], eps: float | None, out: Tensor, pdl: bool = False
) -> None:
    """`quant_gemv`."""
    if x.num_tokens <= FEW:
        quant_gemv(x, weights, eps, out=out, pdl=pdl)
        return
    rows = Rows(x, 0 if eps is None else x.num_cols, eps or 0.0, pdl)
    first = 0
    for weight in weights:
        target = out[:, first : first + weight.num_rows]
        first += weight.num_rows
        if fits(weight, x.num_tokens) and num_splits(weight, x.num_tokens) == 1:
            many_rows(rows.form(None), weight, target[None], pdl)
        elif rows.takes(weight):
            add_parts(rows.parts(weight), target, pdl)
        else:
            for piece, some in _slices(x):
                quant_gemv(some, [weight], eps, out=target[piece], pdl=pdl)


def project_residual(
    x: QuantActivation, weight: QuantWeight, residual: Tensor, norm_weight: Tensor, out: QuantActivation,
    group: int = 0, eps: float = 0.0, pdl: bool = False,
) -> None:
    """`quant_gemv_residual`."""
    rows = Rows(x, group, eps, pdl)
    if rows.takes(weight):
        add_parts_residual(rows.parts(weight), residual, norm_weight, out, pdl)
        return
    for piece, some in _slices(x):
        quant_gemv_residual(some, weight, residual[piece], norm_weight, _some_rows(out, piece), group, eps, pdl=pdl)


def project_swiglu(
    x: QuantActivation, gate: QuantWeight, up: QuantWeight, out: QuantActivation, eps: float, pdl: bool = False,
    half_factor: float = 1.0,
) -> None:
    """`quant_swiglu`."""
    rows = Rows(x, x.num_cols, eps, pdl)
    if rows.takes(gate):
        add_parts_swiglu(rows.parts(gate), rows.parts(up), out, pdl)
        return
    for piece, some in _slices(x):
        quant_swiglu(some, gate, up, _some_rows(out, piece), eps, pdl=pdl, half_factor=half_factor)


def takes_normed(weight: QuantWeight, num_tokens: int) -> bool:
    """Whether `normed_parts` has a product for it."""
    return num_tokens > FEW and (fits(weight, num_tokens) or plain_rows.fits(weight))


def normed_parts(x: NormedRows, weight: QuantWeight, pdl: bool) -> Tensor:
    """[num_splits, num_tokens, num_rows] f32, still to be added up."""
    if weight.format == QuantFormat.F32:
        return plain_rows.plain_rows(x.plain, weight, pdl=pdl)
    return product_parts(x.packed, weight, pdl)


def project_normed(x: NormedRows, weights: Sequence[QuantWeight], out: Tensor, pdl: bool) -> None:
    """The products side by side, [num_tokens, sum of num_rows or more] f32, written."""
    first = 0
    for weight in weights:
        target = out[:, first : first + weight.num_rows]
        first += weight.num_rows
        if weight.format != QuantFormat.F32 and num_splits(weight, out.shape[0]) == 1:
            many_rows(x.packed, weight, target[None], pdl)
        else:
            add_parts(normed_parts(x, weight, pdl), target, pdl)


def feed_forward_parts(
    x: NormedRows, matrices: tuple[QuantWeight, QuantWeight, QuantWeight], factor: float, counts: Tensor, pdl: bool
) -> Tensor:
    """down(silu(gate x) * up x), [num_splits, num_tokens, num_rows] f32, still to be added up.

    matrices:  gate, up, down
    factor:    power of two that keeps the middle within f16 (`half_factor`)
    counts:    of `tile_counts`, for as many columns in the middle or more
    """
    gate, up, down = matrices
    if swiglu_rows.takes(gate, up, x.packed.shape[0]):
        h = swiglu_rows.swiglu_rows(x.packed, gate, up, factor, counts, pdl)
    else:
        h = add_parts_swiglu_packed(normed_parts(x, gate, pdl), normed_parts(x, up, pdl), factor, pdl)
    return product_parts(h, down, pdl, factor)


def product_parts(packed: Tensor, weight: QuantWeight, pdl: bool, x_factor: float = 1.0) -> Tensor:
    """[num_splits, num_tokens, num_rows] f32, still to be added up, of rows that `many_rows` takes."""
    shape = (num_splits(weight, packed.shape[0]), packed.shape[0], weight.num_rows)
    parts = torch.empty(shape, dtype=torch.float32, device=packed.device)
    many_rows(packed, weight, parts, pdl, x_factor)
    return parts


def _half_product(x: Tensor, weight: Tensor) -> Tensor:
    """[num_tokens, num_cols] times [num_rows, num_cols] of one 16-bit type -> [num_tokens, num_rows] f32."""
    if x.is_cuda:
        return torch.mm(x, weight.T, out_dtype=torch.float32)
    return x.float() @ weight.float().T


def _some_rows(x: QuantActivation, rows: slice) -> QuantActivation:
    plain = None if x.plain is None else x.plain[rows]
    half = x.half if x.num_tokens <= FEW else None
    return QuantActivation(x.values[rows], x.scales[rows], x.sums[rows], plain, x.square_sums[rows], half)


def _slices(x: QuantActivation) -> Iterator[tuple[slice, QuantActivation]]:
    for start in range(0, x.num_tokens, FEW):
        rows = slice(start, min(start + FEW, x.num_tokens))
        yield rows, _some_rows(x, rows)

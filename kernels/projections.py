"""A layer's projections for any number of rows: up to eight by the kernels made for them, 16 to 128 by `many_rows`.

Knows which kernel takes what; owns none. Matrices that `many_rows` does not read are taken eight rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.many_rows import fits, many_rows, num_splits
from kernels.pack_halves import pack_halves
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight
from kernels.quant_gemv import quant_gemv
from kernels.quant_gemv_residual import quant_gemv_residual
from kernels.quant_swiglu import quant_swiglu
from kernels.split_sums import add_parts, add_parts_residual, add_parts_swiglu

FEW = 8  # rows that the other kernels take at once


def project(
    x: QuantActivation, weights: Sequence[QuantWeight], eps: float | None, out: Tensor, pdl: bool = False
) -> None:
    """`quant_gemv`."""
    if x.num_tokens <= FEW:
        quant_gemv(x, weights, eps, out=out, pdl=pdl)
        return
    packed = None
    first = 0
    for weight in weights:
        target = out[:, first : first + weight.num_rows]
        first += weight.num_rows
        if fits(weight, x.num_tokens):
            packed = pack_halves(x, 0 if eps is None else x.num_cols, eps or 0.0, pdl) if packed is None else packed
            if num_splits(weight) == 1:
                many_rows(packed, weight, target[None])
            else:
                add_parts(_parts(packed, weight), target, pdl)
        elif weight.format == QuantFormat.F32 and x.plain is not None:
            _plain_product(x, weight, eps, target)
        else:
            for rows, some in _slices(x):
                quant_gemv(some, [weight], eps, out=target[rows], pdl=pdl)


def project_residual(
    x: QuantActivation, weight: QuantWeight, residual: Tensor, norm_weight: Tensor, out: QuantActivation,
    group: int = 0, eps: float = 0.0, pdl: bool = False,
) -> None:
    """`quant_gemv_residual`."""
    if fits(weight, x.num_tokens):
        parts = _parts(pack_halves(x, group, eps, pdl), weight)
        add_parts_residual(parts, residual, norm_weight, out, pdl)
        return
    for rows, some in _slices(x):
        quant_gemv_residual(some, weight, residual[rows], norm_weight, _rows(out, rows), group, eps, pdl=pdl)


def project_swiglu(
    x: QuantActivation, gate: QuantWeight, up: QuantWeight, out: QuantActivation, eps: float, pdl: bool = False
) -> None:
    """`quant_swiglu`."""
    if fits(gate, x.num_tokens):
        packed = pack_halves(x, x.num_cols, eps, pdl)
        add_parts_swiglu(_parts(packed, gate), _parts(packed, up), out, pdl)
        return
    for rows, some in _slices(x):
        quant_swiglu(some, gate, up, _rows(out, rows), eps, pdl=pdl)


def _parts(packed: Tensor, weight: QuantWeight) -> Tensor:
    """[num_splits, num_tokens, num_rows] f32."""
    shape = (num_splits(weight), packed.shape[0], weight.num_rows)
    parts = torch.empty(shape, dtype=torch.float32, device=packed.device)
    many_rows(packed, weight, parts)
    return parts


def _plain_product(x: QuantActivation, weight: QuantWeight, eps: float | None, out: Tensor) -> None:
    """A small f32 matrix, on the activation before it was rounded."""
    y = x.plain @ weight.quants.T
    if eps is not None:
        y *= torch.rsqrt(x.square_sums.sum(-1, keepdim=True) / x.num_cols + eps)
    out.copy_(y)


def _rows(x: QuantActivation, rows: slice) -> QuantActivation:
    plain = None if x.plain is None else x.plain[rows]
    return QuantActivation(x.values[rows], x.scales[rows], x.sums[rows], plain, x.square_sums[rows])


def _slices(x: QuantActivation) -> Iterator[tuple[slice, QuantActivation]]:
    for start in range(0, x.num_tokens, FEW):
        rows = slice(start, min(start + FEW, x.num_tokens))
        yield rows, _rows(x, rows)

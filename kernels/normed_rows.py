"""Rows of the residual stream, finished by one program each: what a layer adds, then the next layer's normed input.

Many rows fill the card with a program per row, which sees the whole row and so needs no second pass for the norm.
Bytes moved: every part or product once, the row read and written, 6 bytes an element written. Accumulation: f32, part
by part or slot by slot, the shared expert last.
Reference:   kernels/reference/normed_rows.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.behind_loads import sum_behind_loads, zero_behind_loads
from kernels.launch import has_dp4a
from kernels.pack_halves import F16_MAX, packed_place


@dataclass(frozen=True, slots=True)
class NormedRows:
    """A layer's input after its RMS norm.

    packed:  [num_tokens, num_cols] f16, columns in the order of `pack_halves`, numbers beyond f16 as its largest
    plain:   [num_tokens, num_cols] f32, columns in order
    """

    packed: Tensor
    plain: Tensor

    @classmethod
    def empty(cls, num_tokens: int, num_cols: int, device: torch.device) -> NormedRows:
        plain = torch.empty(num_tokens, num_cols, device=device)
        return cls(torch.empty_like(plain, dtype=torch.float16), plain)


@triton.jit
def _finish(y, offs, inside, w_ptr, eps, residual_ptr, packed_ptr, plain_ptr, N: tl.constexpr):
    tl.store(residual_ptr + offs, y, mask=inside)
    norm = tl.load(w_ptr + offs, mask=inside, other=0.0)
    normed = y * norm * tl.rsqrt(tl.sum(y * y, axis=0) / N + eps)
    tl.store(plain_ptr + offs, normed, mask=inside)
    half = tl.minimum(tl.maximum(normed, -F16_MAX), F16_MAX).to(tl.float16)
    tl.store(packed_ptr + packed_place(offs), half, mask=inside)


@triton.jit
def _parts_kernel(
    part_ptr, residual_ptr, w_ptr, packed_ptr, plain_ptr, stride_split, eps, N: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    """SPLITS: 0 adds nothing."""
    m = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    inside = offs < N
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    y = tl.load(residual_ptr + m * N + offs, mask=inside, other=0.0)
    if SPLITS > 0:
        parts = ()
        for split in tl.static_range(SPLITS):
            parts = parts + (tl.load(part_ptr + split * stride_split + m * N + offs, mask=inside, other=0.0),)
        y += sum_behind_loads(parts, zero_behind_loads(NATIVE), SPLITS)
    _finish(y, offs, inside, w_ptr, eps, residual_ptr + m * N, packed_ptr + m * N, plain_ptr + m * N, N)


@triton.jit
def _experts_kernel(
    y_ptr, weights_ptr, shared_ptr, stride_split, residual_ptr, w_ptr, packed_ptr, plain_ptr, eps, N: tl.constexpr,
    TOP_K: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):
    """SPLITS: parts that the shared expert's product comes in; 0: there is none."""
    m = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    inside = offs < N
    WIDTH: tl.constexpr = TOP_K + 1 if SPLITS > 0 else TOP_K
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    weights_ptr += m * WIDTH
    y_ptr += m * TOP_K * N
    y = tl.load(y_ptr + offs, mask=inside, other=0.0) * tl.load(weights_ptr)
    for slot in tl.static_range(1, TOP_K):
        y += tl.load(y_ptr + slot * N + offs, mask=inside, other=0.0) * tl.load(weights_ptr + slot)
    if SPLITS > 0:
        shared = tl.load(shared_ptr + m * N + offs, mask=inside, other=0.0)
        for split in tl.static_range(1, SPLITS):
            shared += tl.load(shared_ptr + split * stride_split + m * N + offs, mask=inside, other=0.0)
        y += shared * tl.load(weights_ptr + TOP_K)
    y += tl.load(residual_ptr + m * N + offs, mask=inside, other=0.0)
    _finish(y, offs, inside, w_ptr, eps, residual_ptr + m * N, packed_ptr + m * N, plain_ptr + m * N, N)


def _options(num_cols: int, num_warps: int, pdl: bool) -> dict[str, object]:
    block = triton.next_power_of_2(num_cols)
    num_warps = num_warps if block > 1024 else 4
    options: dict[str, object] = {"N": num_cols, "BLOCK": block, "num_warps": num_warps, "PDL": pdl}
    return options | ({"launch_pdl": True} if pdl else {})


def add_parts_normed(
    parts: Tensor | None, residual: Tensor, norm_weight: Tensor, eps: float, out: NormedRows, pdl: bool = False
) -> None:
    """residual += the sum of the parts, and its norm.

    parts:        [num_splits, num_tokens, hidden] f32, contiguous; None adds nothing
    residual:     [num_tokens, hidden] f32, changed in place; norm_weight: [hidden] f32
    out:          written; hidden a multiple of 128
    """
    num_tokens, hidden = residual.shape
    splits, stride = (0, 0) if parts is None else (parts.shape[0], parts.stride(0))
    _parts_kernel[(num_tokens,)](
        residual if parts is None else parts, residual, norm_weight, out.packed, out.plain, stride, eps, SPLITS=splits,
        NATIVE=has_dp4a(), **_options(hidden, 16, pdl),
    )


def combine_experts_normed(
    products: Tensor, weights: Tensor, shared: Tensor | None, residual: Tensor, norm_weight: Tensor, eps: float,
    out: NormedRows, pdl: bool = False,
) -> None:
    """residual += each token's products, weighted, and its norm.

    products:  [num_tokens * top_k, hidden] f32
    weights:   [num_tokens, top_k] f32, one column more with `shared`
    shared:    [num_splits, num_tokens, hidden] f32, parts of the shared expert's product, or None
    residual, norm_weight, out: as `add_parts_normed` takes them
    """
    num_tokens, hidden = residual.shape
    parts = products if shared is None else shared
    splits, stride = (0, 0) if shared is None else (shared.shape[0], shared.stride(0))
    _experts_kernel[(num_tokens,)](
        products, weights, parts, stride, residual, norm_weight, out.packed, out.plain, eps,
        TOP_K=products.shape[0] // num_tokens, SPLITS=splits, **_options(hidden, 8, pdl),
    )

"""What a Gated DeltaNet step makes once a head before it reads states: the parts of the layer's products added up, then
convolution, SiLU, L2 norms and gates. A row for each head of keys and each head of values, for `wide_delta_step`.

A row is two vectors and EXTRA numbers, HELD rows of updates being held at most (kernels/held_updates.py):
    of keys    q | k | k . k_i, in the last place k . q | q . k_i
    of values  v | norm * silu(z) | share of each update i in the state now | decay, beta, log of decay, held updates
Bytes moved: the products' parts, the ring, taps and held keys once; the rows. Accumulation: f32, part by part.
Reference:   kernels/reference/gated_delta_step.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.behind_loads import sum_behind_loads, zero_behind_loads
from kernels.gated_delta_step import DeltaNetWeights, past, ring_and_taps, silu
from kernels.held_updates import HELD, held_marks
from kernels.launch import has_dp4a

EXTRA = 16  # a row is a multiple of 64 bytes
REGISTERS = 64  # a thread: more leave no room for all programs of 64 sequences at once


@dataclass(frozen=True, slots=True)
class ProjectedParts:
    """Products of a layer's input, [num_splits, num_seqs, width] f32 each, whose parts are still to be added up.

    Slices of wider rows perhaps; the parts of one lie num_seqs rows from one another.
    """

    qkv: Tensor
    z: Tensor
    alpha: Tensor
    beta: Tensor

    @classmethod
    def of(cls, products: Sequence[Tensor], channels: int, num_v_heads: int, head_dim: int) -> ProjectedParts:
        """Of products whose rows, side by side, are q | k | v, z, alpha and beta; none of these lies in two of them."""
        found: list[Tensor] = []
        remaining = iter(products)
        product, first = next(remaining), 0
        for width in (channels, num_v_heads * head_dim, num_v_heads, num_v_heads):
            if first == product.shape[2]:
                product, first = next(remaining), 0
            assert first + width <= product.shape[2]
            found.append(product[:, :, first : first + width])
            first += width
        return cls(*found)


@triton.jit
def _asked(ptrs, stride_split, SPLITS: tl.constexpr):
    """The parts of a sum, all asked for."""
    parts = ()
    for split in tl.static_range(SPLITS):
        parts = parts + (tl.load(ptrs + split * stride_split),)
    return parts


@triton.jit
def _key_row(
    part_ptr, stride_split, ring_ptr, held_ptr, taps_ptr, row_ptr, position, head, SPLITS: tl.constexpr,
    NK: tl.constexpr, NV: tl.constexpr, D: tl.constexpr, HELD: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    """The row of a head of keys; the next held key, where there is room for one."""
    C: tl.constexpr = (2 * NK + NV) * D
    rows = tl.arange(0, D)
    pair = tl.arange(0, 2)[:, None]
    i = tl.arange(0, HELD)
    channel = (pair * NK + head) * D + rows[None, :]  # one tile: the compiler would repeat loads of two vectors
    ring, taps = ring_and_taps(ring_ptr, taps_ptr, channel, position, C)
    keys_ptr = held_ptr + head * HELD * D
    keys = tl.load(keys_ptr + i[:, None] * D + rows[None, :])
    count, _, _ = held_marks(held_ptr + (NK + head) * HELD * D, D, HELD)
    before = past(ring, taps, zero_behind_loads(NATIVE))
    if PDL:
        gdc_wait()
    parts = _asked(part_ptr + channel, stride_split, SPLITS)
    new = sum_behind_loads(parts, zero_behind_loads(NATIVE), SPLITS)
    tl.store(ring_ptr + position % 4 * C + channel, new)
    qk = silu(before + taps[0] * new)
    qk = qk * tl.rsqrt(tl.sum(qk * qk, axis=1) + 1e-6)[:, None] * tl.where(pair == 0, D**-0.5, 1.0)
    tl.store(row_ptr + pair * D + rows[None, :], qk)
    q = tl.sum(tl.where(pair == 0, qk, 0.0), axis=0)
    k = tl.sum(tl.where(pair == 1, qk, 0.0), axis=0)
    # Rows that hold no update may hold anything.
    k_products = tl.where(i < count, tl.sum(keys * k[None, :], axis=1), 0.0)
    q_products = tl.where(i < count, tl.sum(keys * q[None, :], axis=1), 0.0)
    tl.store(row_ptr + 2 * D + i, tl.where(i == HELD - 1, tl.sum(k * q, axis=0), k_products))
    tl.store(row_ptr + 2 * D + HELD + i, q_products)
    if count < HELD - 1:
        tl.store(keys_ptr + count * D + rows, k)


@triton.jit
def _value_row(
    v_ptr, z_ptr, alpha_ptr, beta_ptr, stride_v, stride_z, stride_alpha, stride_beta, ring_ptr, held_ptr, taps_ptr,
    a_ptr, dt_ptr, norm_ptr, row_ptr, position, head, V_SPLITS: tl.constexpr, Z_SPLITS: tl.constexpr,
    ALPHA_SPLITS: tl.constexpr, BETA_SPLITS: tl.constexpr, NK: tl.constexpr, NV: tl.constexpr, D: tl.constexpr,
    HELD: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    """The row of a head of values; strides: between parts."""
    C: tl.constexpr = (2 * NK + NV) * D
    column = tl.arange(0, D)
    i = tl.arange(0, HELD)
    channel = (2 * NK + head) * D + column
    ring, taps = ring_and_taps(ring_ptr, taps_ptr, channel, position, C)
    a = tl.load(a_ptr + head)
    dt = tl.load(dt_ptr + head)
    norm = tl.load(norm_ptr + column)
    count, logs, last = held_marks(held_ptr + (NK + head) * HELD * D, D, HELD)
    before = past(ring, taps, zero_behind_loads(NATIVE))
    if PDL:
        gdc_wait()
    v_parts = _asked(v_ptr + channel, stride_v, V_SPLITS)
    z_parts = _asked(z_ptr + head * D + column, stride_z, Z_SPLITS)
    alpha_parts = _asked(alpha_ptr + head, stride_alpha, ALPHA_SPLITS)
    beta_parts = _asked(beta_ptr + head, stride_beta, BETA_SPLITS)
    zero = zero_behind_loads(NATIVE)
    new = sum_behind_loads(v_parts, zero, V_SPLITS)
    z = sum_behind_loads(z_parts, zero, Z_SPLITS)
    alpha = sum_behind_loads(alpha_parts, zero, ALPHA_SPLITS) + dt
    beta = 1.0 / (1.0 + tl.exp(-sum_behind_loads(beta_parts, zero, BETA_SPLITS)))
    tl.store(ring_ptr + position % 4 * C + channel, new)
    tl.store(row_ptr + column, silu(before + taps[0] * new))
    tl.store(row_ptr + D + column, norm * silu(z))
    softplus = tl.where(alpha > 20.0, alpha, tl.log(1.0 + tl.exp(tl.minimum(alpha, 20.0))))
    total = last + a * softplus
    tl.store(row_ptr + 2 * D + i, tl.where(i < count, tl.exp(total - logs), 0.0))
    tl.store(row_ptr + 2 * D + HELD, tl.exp(total))
    tl.store(row_ptr + 2 * D + HELD + 1, beta)
    tl.store(row_ptr + 2 * D + HELD + 2, total)
    tl.store(row_ptr + 2 * D + HELD + 3, count.to(tl.float32))


@triton.jit
def _delta_rows_kernel(
    qkv_ptr, z_ptr, alpha_ptr, beta_ptr, stride_qkv, stride_z, stride_alpha, stride_beta, ring_ptr, held_ptr, slots_ptr,
    positions_ptr, taps_ptr, a_ptr, dt_ptr, norm_ptr, rows_ptr, QKV_SPLITS: tl.constexpr, Z_SPLITS: tl.constexpr,
    ALPHA_SPLITS: tl.constexpr, BETA_SPLITS: tl.constexpr, NK: tl.constexpr, NV: tl.constexpr, D: tl.constexpr,
    HELD: tl.constexpr, ROW: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    """A program for each sequence and each head, those of keys first."""
    head = tl.program_id(0)
    m = tl.program_id(1)
    num_seqs = tl.num_programs(1)
    if PDL:
        gdc_launch_dependents()
    slot = tl.load(slots_ptr + m).to(tl.int64)
    position = tl.load(positions_ptr + m).to(tl.int32)
    ring_ptr += slot * 4 * (2 * NK + NV) * D
    held_ptr += slot * (NK + NV) * HELD * D
    qkv_ptr += m * stride_qkv
    row_ptr = rows_ptr + (m * (NK + NV) + head) * ROW
    if head < NK:
        _key_row(qkv_ptr, num_seqs * stride_qkv, ring_ptr, held_ptr, taps_ptr, row_ptr, position, head, QKV_SPLITS,
                 NK, NV, D, HELD, NATIVE, PDL)
    else:
        _value_row(
            qkv_ptr, z_ptr + m * stride_z, alpha_ptr + m * stride_alpha, beta_ptr + m * stride_beta,
            num_seqs * stride_qkv, num_seqs * stride_z, num_seqs * stride_alpha, num_seqs * stride_beta, ring_ptr,
            held_ptr, taps_ptr, a_ptr, dt_ptr, norm_ptr, row_ptr, position, head - NK, QKV_SPLITS, Z_SPLITS,
            ALPHA_SPLITS, BETA_SPLITS, NK, NV, D, HELD, NATIVE, PDL,
        )


def row_width(head_dim: int) -> int:
    """Numbers of a row."""
    return 2 * head_dim + EXTRA


def delta_rows(
    projected: ProjectedParts, weights: DeltaNetWeights, conv_ring: Tensor, held: Tensor, state_slots: Tensor,
    positions: Tensor, out: Tensor, pdl: bool = False,
) -> None:
    """The rows of one token of each sequence.

    conv_ring:   as `gated_delta_step` takes it: column positions % 4 of the rows state_slots is written
    held:        as there: the new key is written where there is room for an update, marks and errors are only read
    state_slots: [num_seqs] int64, distinct; positions: [num_seqs] int64
    out:         [num_seqs, num_k_heads + num_v_heads, row_width(head_dim)] f32, contiguous, written
    """
    num_seqs, num_heads, _ = out.shape
    head_dim = held.shape[3]
    assert held.shape[2] == HELD
    parts = (projected.qkv, projected.z, projected.alpha, projected.beta)
    assert all(x.stride(2) == 1 and (x.shape[0] == 1 or x.stride(0) == num_seqs * x.stride(1)) for x in parts)
    _delta_rows_kernel[(num_heads, num_seqs)](
        *parts, *(x.stride(1) for x in parts), conv_ring, held, state_slots, positions, weights.conv, weights.a,
        weights.dt_bias, weights.norm, out, QKV_SPLITS=parts[0].shape[0], Z_SPLITS=parts[1].shape[0],
        ALPHA_SPLITS=parts[2].shape[0], BETA_SPLITS=parts[3].shape[0], NK=weights.num_k_heads,
        NV=num_heads - weights.num_k_heads, D=head_dim, HELD=HELD, ROW=row_width(head_dim), NATIVE=has_dp4a(), PDL=pdl,
        num_warps=1, maxnreg=REGISTERS, **({"launch_pdl": True} if pdl else {}),
    )

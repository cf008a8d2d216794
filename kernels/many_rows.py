"""y[m, n] = sum_k W[n, k] x[m, k] for 16 to 128 rows x: quantised rows become f16 in registers and meet x on the tensor
cores. Written in Gluon, whose layouts say where every number lies; it does not run under the interpreter.

A program makes 64 rows of W for all of x, whose columns lie in the order of `fragments`.

Bytes moved: every plane once; x once per 64 rows (from L2). Accumulation: f32, in an order that neither the number of
rows of x nor the grid changes. Reference:   kernels/reference/quant_gemv.py
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.fragments import WEIGHT_SCALE, fragment, from_row, load_group, tile_layout, unpack
from kernels.quant_format import QuantFormat, QuantWeight

GROUP = 128          # columns of a step
ROWS = 64            # of W a program
FORMATS = tuple(kind for kind in QuantFormat if not kind.is_float)
STAGES = 3
PROGRAMS = 528           # four on each of an H200's multiprocessors
MIN_GROUPS = 4           # that a part of the columns has


@gluon.jit
def _fetch(x_ptr, buffer, group, is_real, M: gl.constexpr, COLS: gl.constexpr):
    """Start copying x's columns of a step, [M, 128] f16, into shared memory."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    row = gl.expand_dims(gl.arange(0, M, gl.SliceLayout(1, LAYOUT)), 1)
    column = gl.expand_dims(gl.arange(0, 128, gl.SliceLayout(0, LAYOUT)), 0)
    if is_real:
        async_copy.async_copy_global_to_shared(buffer, x_ptr + row * COLS + group * 128 + column)
    async_copy.commit_group()


@gluon.jit
def _many_rows_kernel(
    q_ptr, h_ptr, s_ptr, d_ptr, num_rows, x_ptr, y_ptr, stride_y, stride_split, factor, FMT: gl.constexpr,
    COLS: gl.constexpr, M: gl.constexpr, STAGES: gl.constexpr, HAS_WGMMA: gl.constexpr, PDL: gl.constexpr,
):
    ACC: gl.constexpr = (
        gl.NVMMADistributedLayout([3, 0], [4, 1], [16, M, 16]) if HAS_WGMMA
        else gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    )
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    GROUPS: gl.constexpr = COLS // 128
    first_row = gl.program_id(0) * 64
    split = gl.program_id(1)
    first = GROUPS * split // gl.num_programs(1)
    last = GROUPS * (split + 1) // gl.num_programs(1)
    ROW: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, tile_layout()))
    row = gl.minimum(gl.arange(0, 64, ROW), num_rows - 1 - first_row)
    planes = from_row(FMT, q_ptr, h_ptr, s_ptr, d_ptr, first_row.to(gl.int64), COLS)
    buffers = gl.allocate_shared_memory(
        gl.float16, [STAGES, M, 128], gl.NVMMASharedLayout.get_default_for([M, 128], gl.float16)
    )
    if PDL:
        gdc_launch_dependents()
    tile = load_group(FMT, planes, row, first, COLS)  # weights, which no kernel before writes
    if PDL:
        gdc_wait()
    for stage in gl.static_range(STAGES - 1):
        _fetch(x_ptr, buffers.index(stage), first + stage, first + stage < last, M, COLS)
    acc = gl.zeros((64, M), gl.float32, ACC)
    for group in range(first, last):
        async_copy.wait_group(STAGES - 2)
        if HAS_WGMMA:
            fence_async_shared()  # copies of every thread before anybody's matrix instruction
        gl.thread_barrier()
        step = group - first
        ahead = step + STAGES - 1
        _fetch(x_ptr, buffers.index(ahead % STAGES), first + ahead, first + ahead < last, M, COLS)
        next_tile = load_group(FMT, planes, row, gl.minimum(group + 1, last - 1), COLS)
        low, high = unpack(FMT, tile)
        a = fragment(low, high, A)
        b = buffers.index(step % STAGES).permute((1, 0))
        if HAS_WGMMA:
            acc = warpgroup_mma(a, b, acc, is_async=True)
            acc = warpgroup_mma_wait(0, [acc])
        else:
            acc = mma_v2(a, b.load(gl.DotOperandLayout(1, ACC, 2)), acc)
        tile = next_tile
    async_copy.wait_group(0)
    out_row = first_row + gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(1, ACC)), 1)
    token = gl.expand_dims(gl.arange(0, M, gl.SliceLayout(0, ACC)), 0)
    gl.store(y_ptr + split * stride_split + token * stride_y + out_row, acc * factor, mask=out_row < num_rows)


def fits(weight: QuantWeight, num_tokens: int) -> bool:
    """Whether the kernel takes the product."""
    return weight.format in FORMATS and weight.num_cols % GROUP == 0 and num_tokens in (16, 32, 64, 128)


def num_splits(weight: QuantWeight) -> int:
    """Parts that the columns are best cut into, by the matrix's shape alone.

    17,408 rows: 2; 5,120 rows of 17,408 columns: 6; 2,048 rows of 4,096 columns: 8; an output head: 1
    """
    tiles = -(-weight.num_rows // ROWS)
    return max(1, min(round(PROGRAMS / tiles), weight.num_cols // (GROUP * MIN_GROUPS), 8))


def has_wgmma(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.get_device_capability(x.device)[0] == 9


def many_rows(x: Tensor, weight: QuantWeight, out: Tensor, pdl: bool = False, x_factor: float = 1.0) -> None:
    """Products of one matrix, cut along the columns into out.shape[0] parts that are still to be added up.

    x:          [num_tokens, num_cols] f16 in the order of `pack_halves`; num_tokens 16, 32, 64 or 128
    weight:     [num_rows, num_cols], one of FORMATS, num_cols a multiple of 128 (Q4_K, Q5_K, Q6_K: 256)
    out:        [num_splits, num_tokens, num_rows or a slice of a wider row] f32, rows contiguous, written
    x_factor:   power of two that x was multiplied by; taken out again
    """
    splits, num_tokens, _ = out.shape
    _many_rows_kernel[(triton.cdiv(weight.num_rows, ROWS), splits)](
        weight.quants, weight.high, weight.scales, weight.supers, weight.num_rows, x, out, out.stride(1), out.stride(0),
        1.0 / (WEIGHT_SCALE * x_factor),
        FMT=int(weight.format), COLS=weight.num_cols, M=num_tokens, STAGES=STAGES,
        HAS_WGMMA=has_wgmma(x), PDL=pdl, num_warps=4, **({"launch_pdl": True} if pdl else {}),
    )

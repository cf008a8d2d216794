"""y[m, n] = sum_k W[n, k] x[m, k] for 16 to 128 rows x: quantised rows become f16 in registers and meet x on the tensor
cores. Written in Gluon, whose layouts say where every number lies; it does not run under the interpreter.

A program makes 64 rows of W for all of x, whose columns lie in the order of `fragments`.

Bytes moved: every plane once; x once per 64 rows (from L2). Accumulation: f32, in an order that the number of parts
alone changes. Reference:   kernels/reference/quant_gemv.py
"""

from __future__ import annotations

from functools import lru_cache

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
# Programs that an H200 runs at once, by rows of x: their registers let 7, 6, 4 or 2 be on a multiprocessor
PROGRAMS = {16: 924, 32: 792, 64: 528, 128: 264}
MIN_GROUPS = 4           # that a part of the columns has
MOST_PARTS = 8
PART_COST = 0.069        # of writing and reading a part's sums, against a round of products of the same size
# 64 rows in 96 registers and two stages: five programs on a multiprocessor, each slower
TIGHT_ROWS, TIGHT_PROGRAMS, TIGHT_TIME = 64, 660, 1.35
TIGHT = {"STAGES": 2, "maxnreg": 96}


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


def num_splits(weight: QuantWeight, num_tokens: int) -> int:
    """Parts that the columns are best cut into, so that no few programs are left for a round of their own.

    64 rows of x: 17,408 rows of W in 2 parts, 5,120 rows of 17,408 columns in 6, an output head in 1
    """
    return best_parts(weight.num_rows, weight.num_cols, num_tokens)


def best_parts(num_rows: int, num_cols: int, num_tokens: int) -> int:
    """`num_splits` of a matrix of that shape."""
    return _plan(num_rows, num_cols, num_tokens)[0]


@lru_cache
def _plan(num_rows: int, num_cols: int, num_tokens: int) -> tuple[int, bool]:
    """(parts, whether programs are `TIGHT`): the least time, a round of whole columns being one."""
    tiles, programs = -(-num_rows // ROWS), PROGRAMS[num_tokens]
    if tiles >= 2 * programs:
        return 1, False
    most = max(1, min(num_cols // (GROUP * MIN_GROUPS), MOST_PARTS))
    sums = PART_COST * num_tokens * num_rows / (programs * num_cols)
    found = [(-(-tiles * parts // programs) / parts + parts * sums, parts, False) for parts in range(1, most + 1)]
    if num_tokens == TIGHT_ROWS:
        found += [(TIGHT_TIME * -(-tiles * parts // TIGHT_PROGRAMS) / parts + parts * sums, parts, True)
                  for parts in range(1, most + 1)]
    return min(found)[1:]


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
    is_tight = has_wgmma(x) and _plan(weight.num_rows, weight.num_cols, num_tokens)[1]
    _many_rows_kernel[(triton.cdiv(weight.num_rows, ROWS), splits)](
        weight.quants, weight.high, weight.scales, weight.supers, weight.num_rows, x, out, out.stride(1), out.stride(0),
        1.0 / (WEIGHT_SCALE * x_factor),
        FMT=int(weight.format), COLS=weight.num_cols, M=num_tokens, HAS_WGMMA=has_wgmma(x), PDL=pdl, num_warps=4,
        **(TIGHT if is_tight else {"STAGES": STAGES}), **({"launch_pdl": True} if pdl else {}),
    )

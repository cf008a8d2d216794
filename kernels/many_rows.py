"""y[m, n] = sum_k W[n, k] x[m, k] for 16 to 128 rows x: quantised rows become f16 in registers and meet x on the tensor
cores. Written in Gluon, whose layouts say where every number lies; it does not run under the interpreter.

A program makes 64 rows of W for all of x, whose columns lie in the order of `fragments`. x passes through shared
memory, with wgmma by bulk copies: threads' copies need a fence, which would wait for their loads of weights as well.
Buffers of even and of odd groups are two allocations, since Triton puts a barrier between a copy into an allocation and
a read of any part of it.

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
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.fragments import (
    forward,
    fragment,
    from_row,
    load_powers,
    load_quants,
    load_supers,
    product_factors,
    tile_layout,
)
from kernels.quant_format import QuantFormat, QuantWeight
from kernels.unpack_halves import unpack

GROUP = 128          # columns of a step
ROWS = 64            # of W a program
FORMATS = tuple(kind for kind in QuantFormat if not kind.is_float)
REGISTERS = {16: 96, 32: 96, 64: 128, 128: 168}  # that a thread may have, by rows of x; with Q8_0 at least 128
MULTIPROCESSORS = 132
MIN_GROUPS = 4           # that a part of the columns has
MOST_PARTS = 8
PART_COST = 0.29         # of one more part and its sums, against a round of products of the same size


@gluon.jit
def _fetch(x, buffer, bar, group, is_real, M: gl.constexpr, COLS: gl.constexpr, HAS_TMA: gl.constexpr):
    """Start copying x's columns of a group, [M, 128] f16, into shared memory; zeros beyond the last column."""
    if HAS_TMA:
        mbarrier.expect(bar, M * 256, is_real)
        tma.async_copy_global_to_shared(x, [0, group * 128], bar, buffer, is_real)
    else:
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
        row = gl.expand_dims(gl.arange(0, M, gl.SliceLayout(1, LAYOUT)), 1)
        column = gl.expand_dims(gl.arange(0, 128, gl.SliceLayout(0, LAYOUT)), 0)
        if is_real & (group * 128 < COLS):
            async_copy.async_copy_global_to_shared(buffer, x + row * COLS + group * 128 + column)
        async_copy.commit_group()


@gluon.jit
def _second(pair, GROUPS: gl.constexpr):
    """Which group of a pair is read as its second; the last pair of an odd number has one."""
    second = 1
    if GROUPS % 2 != 0:
        second = gl.where(2 * pair + 1 < GROUPS, 1, 0)
    return second


@gluon.jit
def _operand(FMT: gl.constexpr, tile, power, bar, phase, ACC: gl.constexpr, HAS_TMA: gl.constexpr):
    """A group of W as the left operand. Waits for x: what is unpacked before a wait ends up in other registers."""
    if HAS_TMA:
        mbarrier.wait(bar, phase)
    low, high = unpack(FMT, tile, power)
    return fragment(low, high, gl.DotOperandLayout(0, ACC, 2))


@gluon.jit
def _product(a, buffer, acc, is_real, ACC: gl.constexpr, LEFT: gl.constexpr, HAS_TMA: gl.constexpr):
    """acc and a group's product, of which the buffer may then be filled again; LEFT: copies that may be under way."""
    b = buffer.permute((1, 0))
    if HAS_TMA:
        acc = warpgroup_mma(a, b, acc, is_async=True)
        acc = warpgroup_mma_wait(0, [acc])
    else:
        async_copy.wait_group(LEFT)
        gl.thread_barrier()
        if is_real:
            acc = mma_v2(a, b.load(gl.DotOperandLayout(1, ACC, 2)), acc)
    gl.thread_barrier()
    return acc


@gluon.constexpr_function
def product_layout(num_tokens, has_wgmma):
    """Of a tile's products, [64 rows of W, num_tokens]."""
    if has_wgmma:
        return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, num_tokens, 16])
    return gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])


@gluon.jit
def tile_products(
    FMT: gl.constexpr, planes, row, apart, x, first, last, COLS: gl.constexpr, M: gl.constexpr, PAIRS: gl.constexpr,
    HAS_WGMMA: gl.constexpr, PDL: gl.constexpr,
):
    """64 rows of W times x, columns 256 * first to 256 * last: [64, M] f32, to be multiplied by `product_factors`.

    row, apart: as `load_quants` takes them
    x: a descriptor with wgmma, else a pointer. PAIRS: of buffers
    """
    ACC: gl.constexpr = product_layout(M, HAS_WGMMA)
    GROUPS: gl.constexpr = COLS // 128
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, 128], gl.float16)
    evens = gl.allocate_shared_memory(gl.float16, [PAIRS, M, 128], SHARED)
    odds = gl.allocate_shared_memory(gl.float16, [PAIRS, M, 128], SHARED)
    even_bars = gl.allocate_shared_memory(gl.int64, [PAIRS, 1], mbarrier.MBarrierLayout())
    odd_bars = gl.allocate_shared_memory(gl.int64, [PAIRS, 1], mbarrier.MBarrierLayout())
    if HAS_WGMMA:
        for index in gl.static_range(PAIRS):
            mbarrier.init(even_bars.index(index), count=1)
            mbarrier.init(odd_bars.index(index), count=1)
        gl.thread_barrier()
    if PDL:
        gdc_launch_dependents()
    power = load_powers(planes, row, apart)
    planes = forward(FMT, planes, first)
    even = load_quants(FMT, planes, row, 0, COLS, apart)  # weights, which no kernel before writes
    odd = load_quants(FMT, planes, row, _second(first, GROUPS), COLS, apart)
    supers = load_supers(FMT, planes, row, 0, COLS, apart)
    if PDL:
        gdc_wait()
    for index in gl.static_range(PAIRS):
        begun = first + index
        _fetch(x, evens.index(index), even_bars.index(index), 2 * begun, begun < last, M, COLS, HAS_WGMMA)
        _fetch(x, odds.index(index), odd_bars.index(index), 2 * begun + 1, begun < last, M, COLS, HAS_WGMMA)
    acc = gl.zeros((64, M), gl.float32, ACC)
    LEFT: gl.constexpr = 2 * PAIRS - 1  # copies that may be under way when a group's is wanted
    for step in range(first, last):
        pair = (step - first) % PAIRS
        phase = (step - first) // PAIRS & 1
        ahead = step + PAIRS
        following = gl.minimum(step + 1, last - 1)
        planes = forward(FMT, planes, following - step)
        buffer, bar = evens.index(pair), even_bars.index(pair)
        operand = _operand(FMT, even + (supers,), power, bar, phase, ACC, HAS_WGMMA)
        even = load_quants(FMT, planes, row, 0, COLS, apart)  # into the registers that were unpacked
        next_supers = load_supers(FMT, planes, row, 0, COLS, apart)
        acc = _product(operand, buffer, acc, True, ACC, LEFT, HAS_WGMMA)
        _fetch(x, buffer, bar, 2 * ahead, ahead < last, M, COLS, HAS_WGMMA)
        buffer, bar = odds.index(pair), odd_bars.index(pair)
        operand = _operand(FMT, odd + (supers,), power, bar, phase, ACC, HAS_WGMMA)
        odd = load_quants(FMT, planes, row, _second(following, GROUPS), COLS, apart)
        is_real = GROUPS % 2 == 0 or 2 * step + 1 < GROUPS
        acc = _product(operand, buffer, acc, is_real, ACC, LEFT, HAS_WGMMA)
        _fetch(x, buffer, bar, 2 * ahead + 1, ahead < last, M, COLS, HAS_WGMMA)
        supers = next_supers
    if not HAS_WGMMA:
        async_copy.wait_group(0)
    return acc


@gluon.jit
def _many_rows_kernel(
    q_ptr, h_ptr, s_ptr, d_ptr, e_ptr, num_rows, x, y_ptr, stride_y, stride_split, factor, FMT: gl.constexpr,
    COLS: gl.constexpr, M: gl.constexpr, PAIRS: gl.constexpr, FEW: gl.constexpr, HAS_WGMMA: gl.constexpr,
    PDL: gl.constexpr,
):
    """x, PAIRS: of `tile_products`. FEW: W has fewer rows than a program makes."""
    ACC: gl.constexpr = product_layout(M, HAS_WGMMA)
    STEPS: gl.constexpr = (COLS // 128 + 1) // 2
    tile_row = gl.program_id(0) * 64
    split = gl.program_id(1)
    first = STEPS * split // gl.num_programs(1)
    last = STEPS * (split + 1) // gl.num_programs(1)
    row = gl.arange(0, 64, gl.SliceLayout(1, gl.SliceLayout(2, tile_layout())))
    if FEW:
        first_row = tile_row
        row = gl.minimum(row, num_rows - 1)
    else:  # the last program begins early, and leaves out what is not its own
        first_row = gl.minimum(tile_row, num_rows - 64)
    planes = from_row(FMT, q_ptr, h_ptr, s_ptr, d_ptr, e_ptr, first_row.to(gl.int64), COLS)
    apart = (None, None, None, None, None)
    acc = tile_products(FMT, planes, row, apart, x, first, last, COLS, M, PAIRS, HAS_WGMMA, PDL)
    own = gl.arange(0, 64, gl.SliceLayout(1, ACC))
    out_row = first_row + gl.expand_dims(own, 1)
    factors = product_factors(planes, gl.minimum(own, num_rows - 1) if FEW else own, apart) * factor
    token = gl.expand_dims(gl.arange(0, M, gl.SliceLayout(0, ACC)), 0)
    gl.store(y_ptr + split * stride_split + token * stride_y + out_row, acc * gl.expand_dims(factors, 1),
             mask=(out_row >= tile_row) & (out_row < num_rows))


def fits(weight: QuantWeight, num_tokens: int) -> bool:
    """Whether the kernel takes the product."""
    return weight.format in FORMATS and weight.num_cols % GROUP == 0 and num_tokens in (16, 32, 64, 128)


def num_splits(weight: QuantWeight, num_tokens: int) -> int:
    """Parts that the columns are best cut into, so that no few programs are left for a round of their own.

    64 rows of x: 17,408 rows of W in 3 parts, 5,120 rows of 17,408 columns in 6, an output head in 1
    """
    return best_parts(weight.format, weight.num_rows, weight.num_cols, num_tokens)


@lru_cache
def best_parts(kind: QuantFormat, num_rows: int, num_cols: int, num_tokens: int) -> int:
    """`num_splits` of a matrix of that shape: the least time, a round of whole columns being one."""
    tiles, programs = -(-num_rows // ROWS), programs_at_once(kind, num_tokens)
    if tiles >= 2 * programs:
        return 1
    most = max(1, min(num_cols // (GROUP * MIN_GROUPS), MOST_PARTS))
    sums = PART_COST * num_tokens * num_rows / (programs * num_cols)
    return min((-(-tiles * parts // programs) / parts + parts * sums, parts) for parts in range(1, most + 1))[1]


def programs_at_once(kind: QuantFormat, num_tokens: int) -> int:
    """That the card has room for."""
    return MULTIPROCESSORS * (65536 // (128 * registers(kind, num_tokens)))


def registers(kind: QuantFormat, num_tokens: int) -> int:
    """That a thread may have, with wgmma."""
    return max(REGISTERS[num_tokens], 128 if kind == QuantFormat.Q8_0 else 0)


def pairs(num_tokens: int, is_bulk: bool) -> int:
    """Of buffers. With wgmma two of them leave room for fewer programs on a multiprocessor, and are slower."""
    return 1 if is_bulk or num_tokens == 128 else 2


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
    is_bulk = has_wgmma(x)
    _many_rows_kernel[(triton.cdiv(weight.num_rows, ROWS), splits)](
        weight.quants, weight.high, weight.scales, weight.supers, weight.powers, weight.num_rows,
        bulk_copies(x) if is_bulk else x, out, out.stride(1), out.stride(0), 1.0 / x_factor,
        FMT=int(weight.format), COLS=weight.num_cols, M=num_tokens, PAIRS=pairs(num_tokens, is_bulk),
        FEW=weight.num_rows < ROWS, HAS_WGMMA=is_bulk, PDL=pdl, num_warps=4,
        maxnreg=registers(weight.format, num_tokens) if is_bulk else None,
        **({"launch_pdl": True} if pdl else {}),
    )


def bulk_copies(x: Tensor) -> TensorDescriptor:
    """What says how groups of x's columns are copied."""
    block = [x.shape[0], GROUP]
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, gl.float16))

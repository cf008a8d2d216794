"""Products of experts with the tokens that chose them: each expert's weights are read once per run of its tokens.

Written in Gluon, as `many_rows`: quantised rows become f16 in registers and meet a run's activations on the tensor
cores. A program makes 64 rows of one expert for one run (`sort_tokens`); runs are of at most M tokens, and programs
beyond the last run end at once, so that a launch's size depends on the number of tokens alone. Runs of at most eight
have a loop of their own (`short_runs`).

Bytes moved: an expert's planes once per run; a run's activations once per 64 rows (from L2). Accumulation: f32, in an
order that the tokens do not change.
Reference:   kernels/reference/grouped_experts.py
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.fragments import fragment, from_row, load_group, load_powers, product_factors, tile_layout
from kernels.many_rows import FORMATS, GROUP, ROWS, has_wgmma
from kernels.quant_format import QuantWeight
from kernels.short_runs import LONGEST, MOST_COLS, STEP_COLS, short_products
from kernels.sort_tokens import Runs
from kernels.unpack_halves import unpack

STAGES = 3
F16_MAX = gl.constexpr(65504.0)


@gluon.jit
def _fetch(x_ptr, row, buffer, group, is_real, COLS: gl.constexpr):
    """Start copying a group of columns of x's rows `row` [M, 1] into shared memory, [M, 128] f16."""
    column = gl.expand_dims(gl.arange(0, 128, gl.SliceLayout(0, row.type.layout)), 0)
    if is_real:
        async_copy.async_copy_global_to_shared(buffer, x_ptr + group * 128 + (row * COLS + column))
    async_copy.commit_group()


@gluon.jit
def _multiply(a, buffer, acc, ACC: gl.constexpr, HAS_WGMMA: gl.constexpr):
    """a times the buffer's rows, added to acc; with wgmma still under way."""
    b = buffer.permute((1, 0))
    if HAS_WGMMA:
        acc = warpgroup_mma(a, b, acc, is_async=True)
    else:
        acc = mma_v2(a, b.load(gl.DotOperandLayout(1, ACC, 2)), acc)
    return acc


@gluon.jit
def _next_tiles(FMT: gl.constexpr, planes, other, row, group, COLS: gl.constexpr, IS_PAIR: gl.constexpr):
    tile = load_group(FMT, planes, row, group, COLS)
    other_tile = tile
    if IS_PAIR:
        other_tile = load_group(FMT, other, row, group, COLS)
    return tile, other_tile


@gluon.jit
def _run_products(
    planes, other, x_ptr, x_row, FMT: gl.constexpr, COLS: gl.constexpr, M: gl.constexpr, STAGES: gl.constexpr,
    ACC: gl.constexpr, IS_PAIR: gl.constexpr, HAS_WGMMA: gl.constexpr, WAITS: gl.constexpr,
):
    """Both matrices' 64 rows times the rows x_row [M, 1] of x, [64, M] f32 each, to be multiplied by `product_factors`.

    WAITS: for the kernel ahead, which makes x
    """
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    GROUPS: gl.constexpr = COLS // 128
    row = gl.arange(0, 64, gl.SliceLayout(1, gl.SliceLayout(2, tile_layout())))
    buffers = gl.allocate_shared_memory(
        gl.float16, [STAGES, M, 128], gl.NVMMASharedLayout.get_default_for([M, 128], gl.float16)
    )
    tile, other_tile = _next_tiles(FMT, planes, other, row, 0, COLS, IS_PAIR)
    power = load_powers(planes, row, (None, None, None, None, None))
    other_power = power
    if IS_PAIR:
        other_power = load_powers(other, row, (None, None, None, None, None))
    if WAITS:
        gdc_wait()
    for stage in gl.static_range(STAGES - 1):
        _fetch(x_ptr, x_row, buffers.index(stage), stage, stage < GROUPS, COLS)
    acc = gl.zeros((64, M), gl.float32, ACC)
    other_acc = acc
    for group in range(GROUPS):
        async_copy.wait_group(STAGES - 2)
        if HAS_WGMMA:
            fence_async_shared()  # copies of every thread before anybody's matrix instruction
        gl.thread_barrier()
        ahead = group + STAGES - 1
        if GROUPS >= STAGES:
            _fetch(x_ptr, x_row, buffers.index(ahead % STAGES), ahead, ahead < GROUPS, COLS)
        else:  # nothing is left, and the compiler fails at copies that it knows never to be made
            async_copy.commit_group()
        next_tile, next_other = _next_tiles(FMT, planes, other, row, gl.minimum(group + 1, GROUPS - 1), COLS, IS_PAIR)
        buffer = buffers.index(group % STAGES)
        low, high = unpack(FMT, tile, power)
        acc = _multiply(fragment(low, high, A), buffer, acc, ACC, HAS_WGMMA)
        if IS_PAIR:
            low, high = unpack(FMT, other_tile, other_power)
            other_acc = _multiply(fragment(low, high, A), buffer, other_acc, ACC, HAS_WGMMA)
        if HAS_WGMMA:
            if IS_PAIR:
                acc, other_acc = warpgroup_mma_wait(0, [acc, other_acc])
            else:
                acc = warpgroup_mma_wait(0, [acc])
        tile = next_tile
        other_tile = next_other
    async_copy.wait_group(0)
    return acc, other_acc


@gluon.jit
def _expert_rows_kernel(
    q_ptr, h_ptr, s_ptr, d_ptr, e_ptr, uq_ptr, uh_ptr, us_ptr, ud_ptr, ue_ptr, x_ptr, y_ptr, order_ptr, runs_ptr,
    num_runs_ptr, factor, FMT: gl.constexpr, COLS: gl.constexpr, NUM_ROWS: gl.constexpr, TOP_K: gl.constexpr,
    M: gl.constexpr, STAGES: gl.constexpr, IS_PAIR: gl.constexpr, IS_SHORT: gl.constexpr, HAS_WGMMA: gl.constexpr,
    PDL: gl.constexpr,
):
    """IS_PAIR: y[sorted row] = silu(gate x[token]) * (up x[token]), packed; else y[pair] = down x[sorted row].

    factor: of y
    """
    TILES: gl.constexpr = NUM_ROWS // 64
    if PDL:
        if IS_PAIR:
            gdc_wait()  # before the next is let in, so that runs are there when the second half starts
        gdc_launch_dependents()
    run = gl.program_id(0) // TILES
    if run < gl.load(num_runs_ptr):
        ACC: gl.constexpr = (
            gl.NVMMADistributedLayout([3, 0], [4, 1], [16, M, 16]) if HAS_WGMMA
            else gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
        )
        X: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
        expert = gl.load(runs_ptr + run * 4).to(gl.int64)
        first = gl.load(runs_ptr + run * 4 + 1)
        count = gl.load(runs_ptr + run * 4 + 2)
        first_row = gl.program_id(0) % TILES * 64
        matrix_row = expert * NUM_ROWS + first_row
        planes = from_row(FMT, q_ptr, h_ptr, s_ptr, d_ptr, e_ptr, matrix_row, COLS)
        other = from_row(FMT, uq_ptr, uh_ptr, us_ptr, ud_ptr, ue_ptr, matrix_row, COLS)
        x_row = first + gl.minimum(gl.arange(0, M, gl.SliceLayout(1, X)), count - 1)
        if IS_PAIR:
            x_row = gl.load(order_ptr + x_row) // TOP_K
        x_row = gl.expand_dims(x_row, 1)
        WAITS: gl.constexpr = PDL and not IS_PAIR
        if IS_SHORT:
            acc, other_acc = short_products(planes, other, x_ptr, x_row, FMT, COLS, ACC, IS_PAIR, WAITS)
        else:
            acc, other_acc = _run_products(planes, other, x_ptr, x_row, FMT, COLS, M, STAGES, ACC, IS_PAIR,
                                           HAS_WGMMA, WAITS)
        own = gl.arange(0, 64, gl.SliceLayout(1, ACC))
        out_row = first_row + gl.expand_dims(own, 1)
        token = gl.arange(0, M, gl.SliceLayout(0, ACC))
        real = gl.expand_dims(token < count, 0)
        acc = acc * gl.expand_dims(product_factors(planes, own, (None, None, None, None, None)), 1)
        if IS_PAIR:
            place = out_row // 128 * 128 + out_row // 4 % 4 * 32 + out_row // 16 % 2 * 16 + out_row % 2 * 8
            place += out_row // 32 % 4 * 2 + out_row // 2 % 2
            other_acc = other_acc * gl.expand_dims(product_factors(other, own, (None, None, None, None, None)), 1)
            h = acc / (1.0 + gl.exp(-acc)) * other_acc * factor
            place += gl.expand_dims(first + token, 0).to(gl.int64) * NUM_ROWS
            gl.store(y_ptr + place, h.to(gl.float16), mask=real)
        else:
            OUT: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])  # a token's rows side by side
            out_row = first_row + gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(1, OUT)), 1)
            token = gl.arange(0, M, gl.SliceLayout(0, OUT))
            pair = gl.load(order_ptr + first + gl.minimum(token, count - 1)).to(gl.int64)
            acc = acc * factor
            if y_ptr.dtype.element_ty == gl.float16:
                acc = gl.minimum(gl.maximum(acc, -F16_MAX), F16_MAX)
            y = gl.convert_layout(acc.to(y_ptr.dtype.element_ty), OUT)
            place = gl.expand_dims(pair, 0) * NUM_ROWS + out_row
            gl.store(y_ptr + place, y, mask=gl.expand_dims(token < count, 0))


def fits(gate: QuantWeight, down: QuantWeight) -> bool:
    """Whether the kernels take experts of these matrices: every width whole groups of 128."""
    formats = gate.format in FORMATS and down.format in FORMATS
    return formats and gate.num_cols % GROUP == 0 and down.num_cols % GROUP == 0


@dataclass(frozen=True, slots=True)
class _Launch:
    """What both halves have in common; rows: of one expert's matrix."""

    weight: QuantWeight
    other: QuantWeight
    rows: int
    is_pair: bool
    factor: float
    pdl: bool

    def run(self, x: Tensor, y: Tensor, runs: Runs, top_k: int) -> None:
        num_cols = self.weight.num_cols
        is_short = runs.length == LONGEST and num_cols <= MOST_COLS and num_cols % STEP_COLS == 0
        planes = [p for w in (self.weight, self.other) for p in (w.quants, w.high, w.scales, w.supers, w.powers)]
        _expert_rows_kernel[(self.rows // ROWS * runs.most,)](
            *planes, x, y, runs.order, runs.table, runs.count, self.factor, FMT=int(self.weight.format),
            COLS=num_cols, NUM_ROWS=self.rows, TOP_K=top_k, M=runs.length, STAGES=STAGES, IS_PAIR=self.is_pair,
            IS_SHORT=is_short, HAS_WGMMA=has_wgmma(x) and not is_short, PDL=self.pdl, num_warps=4,
            **({"launch_pdl": True} if self.pdl else {}),
        )


def expert_gate_up(
    x: Tensor, gate: QuantWeight, up: QuantWeight, runs: Runs, top_k: int, num_experts: int, out: Tensor,
    pdl: bool = False, factor: float = 1.0,
) -> None:
    """factor * silu(gate x) * (up x) of every (token, expert) pair, sorted by expert.

    x:         [num_tokens, hidden] f16 in the order of `pack_halves`
    gate, up:  [num_experts * ffn, hidden] of one format, as `fits` wants them
    runs:      of the pairs, `sort_tokens`
    out:       [num_tokens * top_k, ffn] f16, written in the order of `pack_halves`
    factor:    power of two that keeps the products within f16
    """
    _Launch(gate, up, gate.num_rows // num_experts, is_pair=True, factor=factor, pdl=pdl).run(x, out, runs, top_k)


def expert_down(
    h: Tensor, down: QuantWeight, runs: Runs, top_k: int, num_experts: int, out: Tensor, pdl: bool = False,
    h_factor: float = 1.0,
) -> None:
    """down h of every pair, put where the pair was before it was sorted.

    h:     [num_tokens * top_k, ffn], of `expert_gate_up`
    down:  [num_experts * hidden, ffn]
    out:   [num_tokens * top_k, hidden] f32 or f16 (what exceeds it is the largest that does not), written
    h_factor: that h was multiplied by; taken out again
    """
    launch = _Launch(down, down, down.num_rows // num_experts, is_pair=False, factor=1.0 / h_factor, pdl=pdl)
    launch.run(h, out, runs, top_k)


def run_length(num_tokens: int, top_k: int, num_experts: int) -> int:
    """Pairs in a run: half as many again as an expert gets, so that most are read once and few rows are empty."""
    return min(64, max(8, triton.next_power_of_2(3 * num_tokens * top_k // (2 * num_experts))))

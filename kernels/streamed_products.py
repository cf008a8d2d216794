"""`quant_swiglu` and `quant_gemv_residual` for one row and matrices of Q4_K or Q6_K whose rows are long.

Weights pass through a ring in shared memory, so that a multiprocessor has 100 KB on their way. Those modules' functions
call these; the contracts are theirs. Written in Gluon; it does not run under the interpreter.

Bytes moved: every plane once. Accumulation: as in `quant_gemv` with tiles of 32 chunks.
Reference:   kernels/reference/quant_gemv.py, kernels/reference/quant_moe.py
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.launch import THREE_OF_8_WARPS, has_bulk_copies, has_dp4a, launch_options
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight
from kernels.streamed_rows import (
    STEP,
    chunk_layout,
    dot_stage,
    fetch,
    load_columns,
    prefetch_scales,
    ring,
    rms_factor,
    store_block,
)

STAGES, WARPS = 3, 8
MIN_COLS = 5120  # the shortest rows that were faster so
PROGRAMS = 396  # of swiglu at most: the three that each of an H200's multiprocessors has room for


@gluon.jit
def _streamed_swiglu_kernel(
    gq_ptr, gh_ptr, gs_ptr, gd_ptr, uq_ptr, uh_ptr, us_ptr, ud_ptr, x_ptr, xs_ptr, xm_ptr, ss_ptr, v_ptr, ys_ptr,
    ym_ptr, eps, FMT: gl.constexpr, COLS: gl.constexpr, FFN: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
    PREFETCH: gl.constexpr, PDL: gl.constexpr,
):
    STEPS: gl.constexpr = COLS // 1024
    BLOCKS: gl.constexpr = FFN // 16
    if PDL:
        gdc_launch_dependents()
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    gates = (gq_ptr, gh_ptr, gs_ptr, gd_ptr)
    ups = (uq_ptr, uh_ptr, us_ptr, ud_ptr)
    gate_ring = ring(FMT, gd_ptr.dtype.element_ty, STAGES)
    up_ring = ring(FMT, ud_ptr.dtype.element_ty, STAGES)
    first_row = program.to(gl.int64) * 16
    if PREFETCH:
        prefetch_scales(gates, first_row, COLS)
        prefetch_scales(ups, first_row, COLS)
    for stage in gl.static_range(STAGES - 1):
        fetch(FMT, gates, gate_ring, stage, first_row, stage, COLS, WARPS)
        fetch(FMT, ups, up_ring, stage, first_row, stage, COLS, WARPS)
        async_copy.commit_group()
    if PDL:
        gdc_wait()
    factor = rms_factor(ss_ptr, eps, COLS, WARPS)
    unit = 0
    for block in range(program, BLOCKS, programs):
        gate_sums = gl.zeros((16, 32), gl.float32, gl.SliceLayout(2, chunk_layout(WARPS)))
        up_sums = gate_sums
        for step in range(STEPS):
            x = load_columns((x_ptr, xs_ptr, xm_ptr, ss_ptr), step, eps, COLS, 0, WARPS)
            async_copy.wait_group(STAGES - 2)
            gl.thread_barrier()
            if PREFETCH:
                if (step == 0) & (block + programs < BLOCKS):
                    following = (block + programs).to(gl.int64) * 16
                    prefetch_scales(gates, following, COLS)
                    prefetch_scales(ups, following, COLS)
            ahead = step + STAGES - 1
            ahead_block = block
            if ahead >= STEPS:
                ahead -= STEPS
                ahead_block += programs
            if ahead_block < BLOCKS:
                free = (unit + STAGES - 1) % STAGES
                ahead_row = ahead_block.to(gl.int64) * 16
                fetch(FMT, gates, gate_ring, free, ahead_row, ahead, COLS, WARPS)
                fetch(FMT, ups, up_ring, free, ahead_row, ahead, COLS, WARPS)
            async_copy.commit_group()
            gate_sums += dot_stage(FMT, gate_ring, unit % STAGES, x, WARPS)
            up_sums += dot_stage(FMT, up_ring, unit % STAGES, x, WARPS)
            unit += 1
        gate = gl.sum(gate_sums, axis=1) * factor
        h = gate / (1.0 + gl.exp(-gate)) * (gl.sum(up_sums, axis=1) * factor)
        R: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
        store_block(gl.convert_layout(h, R), block, v_ptr, ys_ptr, ym_ptr, FFN, R)
    async_copy.wait_group(0)


@gluon.jit
def _streamed_residual_kernel(
    q_ptr, h_ptr, s_ptr, d_ptr, x_ptr, xs_ptr, xm_ptr, xq_ptr, eps, residual_ptr, w_ptr, v_ptr, ys_ptr, ym_ptr, yp_ptr,
    ss_ptr, FMT: gl.constexpr, COLS: gl.constexpr, N: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
    WARPS: gl.constexpr, PREFETCH: gl.constexpr, PDL: gl.constexpr,
):
    STEPS: gl.constexpr = COLS // 1024
    R: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    if PDL:
        gdc_launch_dependents()
    block = gl.program_id(0)
    first_row = block.to(gl.int64) * 16
    planes = (q_ptr, h_ptr, s_ptr, d_ptr)
    buffers = ring(FMT, d_ptr.dtype.element_ty, STAGES)
    here = block * 16 + gl.arange(0, 16, R)
    norm = gl.load(w_ptr + here)
    if PREFETCH:
        prefetch_scales(planes, first_row, COLS)
    for stage in gl.static_range(STAGES - 1):
        fetch(FMT, planes, buffers, stage, first_row, stage, COLS, WARPS)
        async_copy.commit_group()
    if PDL:
        gdc_wait()
    before = gl.load(residual_ptr + here)
    sums = gl.zeros((16, 32), gl.float32, gl.SliceLayout(2, chunk_layout(WARPS)))
    x = load_columns((x_ptr, xs_ptr, xm_ptr, xq_ptr), 0, eps, COLS, GROUP, WARPS)
    for step in range(STEPS):
        async_copy.wait_group(STAGES - 2)
        gl.thread_barrier()
        next_step = gl.minimum(step + 1, STEPS - 1)  # its columns of x are on their way while this one is multiplied
        next_x = load_columns((x_ptr, xs_ptr, xm_ptr, xq_ptr), next_step, eps, COLS, GROUP, WARPS)
        ahead = step + STAGES - 1
        if ahead < STEPS:
            fetch(FMT, planes, buffers, ahead % STAGES, first_row, ahead, COLS, WARPS)
        async_copy.commit_group()
        sums += dot_stage(FMT, buffers, step % STAGES, x, WARPS)
        x = next_x
    async_copy.wait_group(0)
    y = gl.convert_layout(gl.sum(sums, axis=1), R) + before
    gl.store(residual_ptr + here, y)
    gl.store(ss_ptr + block, gl.sum(y * y, axis=0))
    weighted = y * norm
    gl.store(yp_ptr + here, weighted)
    store_block(weighted, block, v_ptr, ys_ptr, ym_ptr, N, R)


def fits(x: QuantActivation, weight: QuantWeight) -> bool:
    """Whether these kernels should take the product."""
    is_long = weight.num_cols % STEP == 0 and weight.num_cols >= MIN_COLS
    return has_dp4a() and x.num_tokens == 1 and is_long and weight.format in (QuantFormat.Q4_K, QuantFormat.Q6_K)


def _planes(weight: QuantWeight) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return weight.quants, weight.high, weight.scales, weight.supers


def _options(x: QuantActivation, pdl: bool) -> dict[str, object]:
    launch = launch_options(WARPS, pdl, THREE_OF_8_WARPS)
    return {"WARPS": WARPS, "PREFETCH": has_bulk_copies(x.values), "PDL": pdl, **launch}


def streamed_swiglu(
    x: QuantActivation, gate: QuantWeight, up: QuantWeight, out: QuantActivation, eps: float, pdl: bool
) -> None:
    """`quant_swiglu` where `fits` says so."""
    blocks = gate.num_rows // 16
    programs = triton.cdiv(blocks, triton.cdiv(blocks, PROGRAMS))  # as many blocks for each
    _streamed_swiglu_kernel[(programs,)](
        *_planes(gate), *_planes(up), x.values.view(torch.int32), x.scales, x.sums, x.square_sums, out.values,
        out.scales, out.sums, eps, FMT=int(gate.format), COLS=gate.num_cols, FFN=gate.num_rows, STAGES=STAGES,
        **_options(x, pdl),
    )


def streamed_residual(
    x: QuantActivation, weight: QuantWeight, residual: Tensor, norm_weight: Tensor, out: QuantActivation, group: int,
    eps: float, pdl: bool,
) -> None:
    """`quant_gemv_residual` where `fits` says so."""
    _streamed_residual_kernel[(weight.num_rows // 16,)](
        *_planes(weight), x.values.view(torch.int32), x.scales, x.sums, x.square_sums, eps, residual, norm_weight,
        out.values, out.scales, out.sums, out.plain, out.square_sums, FMT=int(weight.format), COLS=weight.num_cols,
        N=weight.num_rows, GROUP=group, STAGES=STAGES, **_options(x, pdl),
    )

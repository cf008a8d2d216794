"""Device function: products of experts with a run of at most eight tokens, all of it in shared memory.

Written in Gluon; a part of `expert_rows`. Warps wait for nobody inside the loop: each loads its rows two groups of
columns ahead, unpacks them and multiplies by the small instruction that every card has. Knows no grid and no output.
Reference: kernels/reference/grouped_experts.py
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_wait

from kernels.fragments import fragment, load_group, load_powers, tile_layout
from kernels.unpack_halves import unpack

LONGEST = 8  # tokens of a run
MOST_COLS = 2048  # 32 KB of activations: four programs on a multiprocessor
STEP_COLS = 256  # two groups


@gluon.jit
def _load_step(FMT: gl.constexpr, planes, other, row, step, COLS: gl.constexpr, IS_PAIR: gl.constexpr):
    """Two groups of columns of either matrix."""
    tiles = (load_group(FMT, planes, row, 2 * step, COLS), load_group(FMT, planes, row, 2 * step + 1, COLS))
    others = tiles
    if IS_PAIR:
        others = (load_group(FMT, other, row, 2 * step, COLS), load_group(FMT, other, row, 2 * step + 1, COLS))
    return tiles, others


@gluon.jit
def _multiply(FMT: gl.constexpr, tile, power, buffer, acc, ACC: gl.constexpr):
    low, high = unpack(FMT, tile, power)
    a = fragment(low, high, gl.DotOperandLayout(0, ACC, 2))
    return mma_v2(a, buffer.permute((1, 0)).load(gl.DotOperandLayout(1, ACC, 2)), acc)


@gluon.jit
def short_products(
    planes, other, x_ptr, x_row, FMT: gl.constexpr, COLS: gl.constexpr, ACC: gl.constexpr, IS_PAIR: gl.constexpr,
    WAITS: gl.constexpr,
):
    """Both matrices' 64 rows times the rows x_row [8, 1] of x, [64, 8] f32 each, to be multiplied by `product_factors`.

    WAITS: for the kernel ahead, which makes x
    """
    GROUPS: gl.constexpr = COLS // 128
    STEPS: gl.constexpr = COLS // 256
    row = gl.arange(0, 64, gl.SliceLayout(1, gl.SliceLayout(2, tile_layout())))
    tiles, others = _load_step(FMT, planes, other, row, 0, COLS, IS_PAIR)
    power = load_powers(planes, row, (None, None, None, None, None))
    other_power = power
    if IS_PAIR:
        other_power = load_powers(other, row, (None, None, None, None, None))
    buffers = gl.allocate_shared_memory(
        gl.float16, [GROUPS, 8, 128], gl.NVMMASharedLayout.get_default_for([8, 128], gl.float16)
    )
    if WAITS:
        gdc_wait()
    place = x_row * COLS + gl.expand_dims(gl.arange(0, 128, gl.SliceLayout(0, x_row.type.layout)), 0)
    for group in gl.static_range(GROUPS):
        async_copy.async_copy_global_to_shared(buffers.index(group), x_ptr + group * 128 + place)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.thread_barrier()
    acc = gl.zeros((64, 8), gl.float32, ACC)
    other_acc = acc
    for step in range(STEPS):
        next_tiles, next_others = _load_step(
            FMT, planes, other, row, gl.minimum(step + 1, STEPS - 1), COLS, IS_PAIR
        )
        for half in gl.static_range(2):
            buffer = buffers.index(2 * step + half)
            acc = _multiply(FMT, tiles[half], power, buffer, acc, ACC)
            if IS_PAIR:
                other_acc = _multiply(FMT, others[half], other_power, buffer, other_acc, ACC)
        tiles = next_tiles
        others = next_others
    return acc, other_acc

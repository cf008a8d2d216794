"""A router's logits of one to eight rows and the choice of experts in one launch: what `quant_gemv` with the router and
then `route_tokens` do.

A program makes one expert's logits; the one that finishes last chooses for every row. Which one that is, is counted at
an address that is zero before and after; the count orders nothing else.
Bytes moved: the router once (rows stay in the caches). Accumulation: f32, in an order that does not depend on the
number of rows.
Reference:   kernels/reference/quant_moe.py (quant_route)
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import row_factors
from kernels.behind_loads import zero_behind_loads
from kernels.launch import has_dp4a
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight
from kernels.route_tokens import choose_rows

MAX_ROWS = 8
WARPS = 4
THREADS = tl.constexpr(32 * WARPS)
SPAN = tl.constexpr(512)  # columns that a program's threads take at once, four each

# $1..$8: a thread's numbers of 8 rows; $9: where they go; $10: where the eight that it adds up come from
_SUM_ASM = tl.constexpr("""{ .shared .align 16 .b8 parts[4096]; .reg .b32 a; .reg .f32 v, w;
mov.u32 a, parts; add.u32 a, a, $9; st.shared.v4.f32 [a], {$1, $2, $3, $4}; st.shared.v4.f32 [a+2048], {$5, $6, $7, $8};
bar.sync 0; mov.u32 a, parts; add.u32 a, a, $10; ld.shared.f32 $0, [a]; ld.shared.f32 v, [a+256]; add.f32 $0, $0, v;
ld.shared.f32 v, [a+512]; ld.shared.f32 w, [a+768]; add.f32 v, v, w; add.f32 $0, $0, v;
ld.shared.f32 v, [a+1024]; ld.shared.f32 w, [a+1280]; add.f32 v, v, w; add.f32 $0, $0, v;
ld.shared.f32 v, [a+1536]; ld.shared.f32 w, [a+1792]; add.f32 v, v, w; add.f32 $0, $0, v; }""")


@triton.jit
def _columns(COLS: tl.constexpr, START: tl.constexpr):
    """(four columns of each thread, which of them the row has), [THREADS, 4]."""
    column = START + tl.arange(0, THREADS)[:, None] * 4 + tl.arange(0, 4)[None, :]
    return column, column < COLS


@triton.jit
def _plain_row(w_ptr, COLS: tl.constexpr):
    """A row of plain numbers, a tuple of [THREADS, 4]; it needs no activation."""
    row = ()
    for start in tl.static_range(0, COLS, SPAN):
        column, inside = _columns(COLS, start)
        row = row + (tl.load(w_ptr + column, mask=inside, other=0.0).to(tl.float32),)
    return row


@triton.jit
def _eight_sums(parts, NATIVE: tl.constexpr):
    """Eight tensors, a number to a thread -> the sum of each, [8] f32."""
    p0, p1, p2, p3, p4, p5, p6, p7 = parts
    if NATIVE:
        thread = tl.arange(0, THREADS)
        token = thread // 16
        mine = token // 4 * 2048 + token % 4 * 4 + thread % 16 * 16
        some = tl.inline_asm_elementwise(
            _SUM_ASM, "=&f,f,f,f,f,f,f,f,f,r,r", [p0, p1, p2, p3, p4, p5, p6, p7, thread * 16, mine],
            dtype=tl.float32, is_pure=False, pack=1,
        )
        total = tl.sum(tl.reshape(some, (8, 16)), axis=1)
    else:
        token = tl.arange(0, 8)
        total = tl.zeros((8,), tl.float32)
        for m in tl.static_range(8):
            total = tl.where(token == m, tl.sum(parts[m], axis=0), total)
    return total


@triton.jit
def _products(row, x_ptr, ss_ptr, eps, COLS: tl.constexpr, M: tl.constexpr, NATIVE: tl.constexpr):
    """`_plain_row` times M rows of f32, times the norm's factor -> [8] f32."""
    AT_ONCE: tl.constexpr = 4  # pieces whose loads are on their way before the first is multiplied
    parts = ()
    for _ in tl.static_range(8):
        parts = parts + (tl.zeros((THREADS,), tl.float32),)
    for first in tl.static_range(0, len(row), AT_ONCE):
        x = ()
        for i in tl.static_range(first, min(first + AT_ONCE, len(row))):
            column, inside = _columns(COLS, i * SPAN)
            for m in tl.static_range(M):
                x = x + (tl.load(x_ptr + m * COLS + column, mask=inside, other=0.0),)
        if first == 0:
            factor = row_factors(ss_ptr, eps, COLS, M)
        zero = zero_behind_loads(NATIVE)
        sums = ()
        for m in tl.static_range(8):
            total = parts[m]
            for i in tl.static_range(first, min(first + AT_ONCE, len(row))):
                if m < M:
                    total += tl.sum((row[i] + zero) * x[(i - first) * M + m], axis=1)
            sums = sums + (total,)
        parts = sums
    return _eight_sums(parts, NATIVE) * factor


@triton.jit
def _store_column(y, target, stride, M: tl.constexpr):
    """One number a row, [8], each by a thread that has it."""
    lane = tl.arange(0, 16)[None, :]
    token = tl.arange(0, 8)[:, None]
    tl.store(target + token * stride + lane, y[:, None] + lane * 0.0, mask=(lane == 0) & (token < M))


@triton.jit
def _router_choice_kernel(
    w_ptr, x_ptr, ss_ptr, eps, logits_ptr, stride_logits, ids_ptr, weights_ptr, count_ptr, COLS: tl.constexpr,
    M: tl.constexpr, E: tl.constexpr, TOP_K: tl.constexpr, HAS_SHARED: tl.constexpr, NATIVE: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    numbers = _plain_row(w_ptr + row * COLS, COLS)
    if PDL:
        gdc_wait()
    y = _products(numbers, x_ptr, ss_ptr, eps, COLS, M, NATIVE)
    token = tl.arange(0, 8)
    _store_column(y, logits_ptr + row, stride_logits, M)
    tl.debug_barrier()  # all threads' logits before one thread's count
    if tl.atomic_add(count_ptr, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        choose_rows(logits_ptr, 0, stride_logits, ids_ptr, weights_ptr, token, token < M, 1, E, TOP_K, HAS_SHARED)
        tl.store(count_ptr, 0)


def fits(x: QuantActivation, router: QuantWeight) -> bool:
    """Whether `router_choice` takes the product."""
    return x.num_tokens <= MAX_ROWS and x.plain is not None and router.format == QuantFormat.F32


def router_choice(
    x: QuantActivation, router: QuantWeight, eps: float, logits: Tensor, expert_ids: Tensor, weights: Tensor,
    count: Tensor, pdl: bool = False,
) -> None:
    """Choose.

    x:           one to eight rows with their plain numbers
    router:      [num_experts, hidden] F32, one row more (the shared expert's gate) where `weights` has one column more
    eps:         of the RMS norm, its factor taken from x.square_sums
    logits:      [num_tokens, num_experts or one more] f32, written; fastest where rows start at multiples of 16
    expert_ids, weights: as `route_tokens` writes them
    count:       [1] int32, zero; zero again afterwards
    pdl:         whether the kernel before it in the stream signals early (programmatic dependent launch)
    """
    top_k = expert_ids.shape[1]
    has_shared = weights.shape[1] > top_k
    _router_choice_kernel[(router.num_rows,)](
        router.quants, x.plain, x.square_sums, eps, logits, logits.stride(0), expert_ids, weights, count,
        COLS=router.num_cols, M=x.num_tokens, E=router.num_rows - has_shared, TOP_K=top_k, HAS_SHARED=has_shared,
        NATIVE=has_dp4a(), PDL=pdl, num_warps=WARPS, **({"launch_pdl": True} if pdl else {}),
    )

"""Device functions: what the warps of a program have of the matrix instruction's results, added up by one barrier.

Lanes hold results as `quant_mma` says. Knows no product.
Reference: kernels/reference/quant_gemv.py
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def result_tokens(num_warps, native):
    """Columns of what `tokens_by_rows` returns: more than 8 repeat the first 8, one number to a thread."""
    return 2 * num_warps if native and num_warps > 4 else 8


# $1..$4: a lane's results; $5: where they go, $6: where the thread's own come from, 512 bytes apart for each warp
_SUM_ASM = """{ .shared .align 16 .b8 parts[SIZE]; .reg .b32 a; .reg .f32 v, w;
mov.u32 a, parts; add.u32 a, a, $5; st.shared.v4.f32 [a], {$1, $2, $3, $4}; bar.sync 0;
mov.u32 a, parts; add.u32 a, a, $6; ld.shared.f32 $0, [a]; ld.shared.f32 v, [a+512]; add.f32 $0, $0, v;
ld.shared.f32 v, [a+1024]; ld.shared.f32 w, [a+1536]; add.f32 v, v, w; add.f32 $0, $0, v;
REST }"""
_SUM_REST = """ld.shared.f32 v, [a+2048]; ld.shared.f32 w, [a+2560]; add.f32 v, v, w; add.f32 $0, $0, v;
ld.shared.f32 v, [a+3072]; ld.shared.f32 w, [a+3584]; add.f32 v, v, w; add.f32 $0, $0, v;"""
_SUM_4 = tl.constexpr(_SUM_ASM.replace("SIZE", "2048").replace("REST", ""))
_SUM_8 = tl.constexpr(_SUM_ASM.replace("SIZE", "4096").replace("REST", _SUM_REST))


@triton.jit
def tokens_by_rows(sums, W: tl.constexpr, NATIVE: tl.constexpr):
    """The chains' results of every warp, added up -> [`result_tokens`, 16 rows] f32."""
    c0, c1, c2, c3 = sums[0]
    if len(sums) == 2:
        c0 += sums[1][0]
        c1 += sums[1][1]
        c2 += sums[1][2]
        c3 += sums[1][3]
    if NATIVE and (W == 4 or W == 8):
        thread = tl.arange(0, W * 32)
        place = (thread ^ (thread // 8 % 4)) * 16
        row = thread % 16
        token = thread // 16 % 8
        lane = row % 8 * 4 + token // 2
        mine = (lane ^ lane // 8) * 16 + row // 8 * 8 + token % 2 * 4
        total = tl.inline_asm_elementwise(
            _SUM_4 if W == 4 else _SUM_8, "=&f,f,f,f,f,r,r", [c0, c1, c2, c3, place, mine], dtype=tl.float32,
            is_pure=False, pack=1,
        )
        total = tl.reshape(total, (2 * W, 16))
    else:
        top = tl.reshape(tl.join(tl.reshape(c0, (W, 32)), tl.reshape(c1, (W, 32))), (W, 64))
        bottom = tl.reshape(tl.join(tl.reshape(c2, (W, 32)), tl.reshape(c3, (W, 32))), (W, 64))
        both = tl.permute(tl.join(tl.sum(top, axis=0), tl.sum(bottom, axis=0)), (1, 0))
        total = tl.permute(tl.reshape(both, (16, 8)), (1, 0))
    return total

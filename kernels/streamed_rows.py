"""Device functions: 16 rows of Q4_K or Q6_K on their way through shared memory, times one row of 16-bit integers.

Written in Gluon, whose copies into shared memory keep more bytes on their way than registers could hold; it does not
run under the interpreter. Lane l of a warp has chunk l of a step's 1,024 columns, of the rows that are its warp's. Owns
the ring's buffers and the products; knows no grid.
Reference: kernels/reference/quant_weight.py (values), kernels/reference/quant_gemv.py (products)
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from kernels.quant_dot import DOT, UNSIGNED_DOT

STEP = 1024  # columns of a step
Q4_K = gl.constexpr(12)
Q6_K = gl.constexpr(14)
LEVELS = gl.constexpr(32639.0)  # quant_format.ACTIVATION_LEVELS
TINY = gl.constexpr(1e-30)  # quant_format.TINY_ACTIVATION
_BULK_ASM = gl.constexpr("""{ .reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0;
@p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }""")
_SIGNED_ASM = gl.constexpr(DOT)
_UNSIGNED_ASM = gl.constexpr(UNSIGNED_DOT)


@gluon.constexpr_function
def chunk_layout(warps, words=4):
    """[16 rows, 32 chunks, words]: a warp has neighbouring rows, a lane a chunk of each."""
    return gl.BlockedLayout([16 // warps, 1, words], [1, 32, 1], [warps, 1, 1], [2, 1, 0])


@gluon.constexpr_function
def _flat(rank):
    return gl.SwizzledSharedLayout(1, 1, 1, list(range(rank))[::-1])


@gluon.jit
def ring(FMT: gl.constexpr, super_type: gl.constexpr, STAGES: gl.constexpr):
    """Buffers of STAGES steps: quants, high bits, scales, supers."""
    quants = gl.allocate_shared_memory(gl.int32, [STAGES, 16, 32, 4], _flat(3))
    high = quants
    if FMT == Q6_K:
        high = gl.allocate_shared_memory(gl.int32, [STAGES, 16, 32, 2], _flat(3))
    scales = gl.allocate_shared_memory(gl.int16, [STAGES, 16, 32], _flat(2))
    supers = gl.allocate_shared_memory(super_type, [STAGES, 16, 4], _flat(2))
    return quants, high, scales, supers


@gluon.jit
def _places(ROW: gl.constexpr, L: gl.constexpr):
    """Offsets of a tile's words from its first, [16, 32, words]; ROW: words of a row."""
    WORDS: gl.constexpr = L.size_per_thread[2]
    S: gl.constexpr = gl.SliceLayout(2, L)
    row = gl.expand_dims(gl.expand_dims(gl.arange(0, 16, gl.SliceLayout(1, S)), 1), 2)
    chunk = gl.expand_dims(gl.expand_dims(gl.arange(0, 32, gl.SliceLayout(0, S)), 0), 2)
    word = gl.expand_dims(gl.expand_dims(gl.arange(0, WORDS, gl.SliceLayout(0, gl.SliceLayout(1, L))), 0), 1)
    return row * ROW + chunk * WORDS + word


@gluon.jit
def _pieces(ROW: gl.constexpr, ITEMS: gl.constexpr, L: gl.constexpr):
    """Offsets [16, ITEMS] of the items of 16 rows that have ROW items each."""
    row = gl.expand_dims(gl.arange(0, 16, gl.SliceLayout(1, L)), 1)
    return row * ROW + gl.expand_dims(gl.arange(0, ITEMS, gl.SliceLayout(0, L)), 0)


@gluon.jit
def fetch(FMT: gl.constexpr, planes, buffers, stage, first_row, step, COLS: gl.constexpr, WARPS: gl.constexpr):
    """Start copying step number `step` of the 16 rows from first_row (int64) on into a stage of the ring."""
    quants, high, scales, supers = planes
    q_buffer, h_buffer, s_buffer, d_buffer = buffers
    quants += first_row * (COLS // 8) + step * 128
    async_copy.async_copy_global_to_shared(q_buffer.index(stage), quants + _places(COLS // 8, chunk_layout(WARPS)))
    if FMT == Q6_K:
        high += first_row * (COLS // 16) + step * 64
        places = _places(COLS // 16, chunk_layout(WARPS, 2))
        async_copy.async_copy_global_to_shared(h_buffer.index(stage), high + places)
    scales += first_row * (COLS // 32) + step * 32
    pieces = _pieces(COLS // 32, 32, gl.BlockedLayout([1, 8], [8, 4], [WARPS, 1], [1, 0]))
    async_copy.async_copy_global_to_shared(s_buffer.index(stage), scales + pieces)
    supers += first_row * (COLS // 256) + step * 4
    pieces = _pieces(COLS // 256, 4, gl.BlockedLayout([1, 4], [32, 1], [WARPS, 1], [1, 0]))
    async_copy.async_copy_global_to_shared(d_buffer.index(stage), supers + pieces)


@gluon.jit
def _prefetch(ptr, NUM: gl.constexpr):
    """NUM bytes, whole 16s, into the L2 cache."""
    gl.inline_asm_elementwise(_BULK_ASM, "=r,l,r", [ptr.to(gl.int64), NUM], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def prefetch_scales(planes, first_row, COLS: gl.constexpr):
    """All scales of 16 rows: steps copy them by 64 bytes, which memory would rather give in one piece."""
    scales, supers = planes[2], planes[3]
    _prefetch(scales + first_row * (COLS // 32), COLS)
    _prefetch(supers + first_row * (COLS // 256), COLS // 16 * (supers.dtype.element_ty.primitive_bitwidth // 8))


@gluon.jit
def _same(x, LAYOUT: gl.constexpr):
    return gl.convert_layout(x, LAYOUT, assert_trivial=True)


@gluon.jit
def _split(x, LAYOUT: gl.constexpr):
    """[..., 2, 2] -> four tensors in LAYOUT, which a thread has anyway."""
    first, second = gl.split(x)
    a, c = gl.split(first)
    b, d = gl.split(second)
    return _same(a, LAYOUT), _same(b, LAYOUT), _same(c, LAYOUT), _same(d, LAYOUT)


@gluon.jit
def _words(x_ptr, C: gl.constexpr, L: gl.constexpr):
    """Each lane's four words of the 128 at x_ptr, [1, 32] each."""
    place = gl.expand_dims(gl.arange(0, 32, gl.SliceLayout(1, L)) * 4, 1)
    x = gl.load(x_ptr + (place + gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, L)), 0)))
    a, b, c, d = _split(gl.reshape(x, (32, 2, 2)), gl.SliceLayout(0, C))
    return gl.expand_dims(a, 0), gl.expand_dims(b, 0), gl.expand_dims(c, 0), gl.expand_dims(d, 0)


@gluon.jit
def _group_factor(squares_ptr, eps, step, GROUP: gl.constexpr, L: gl.constexpr):
    """RMS factor of each chunk's group of GROUP columns, [32]."""
    first = (step * 32 + gl.arange(0, 32, gl.SliceLayout(1, L))) * 32 // GROUP * (GROUP // 16)
    block = gl.expand_dims(gl.arange(0, GROUP // 16, gl.SliceLayout(0, L)), 0)
    return gl.rsqrt(gl.sum(gl.load(squares_ptr + (gl.expand_dims(first, 1) + block)), axis=1) / GROUP + eps)


@gluon.jit
def load_columns(x, step, eps, COLS: gl.constexpr, GROUP: gl.constexpr, WARPS: gl.constexpr):
    """A step's columns of x, of the even blocks and of the odd ones: high words, low words, scale, scaled sum.

    x:      (values as words, scales, sums, square sums), addresses of a row of `QuantActivation`
    GROUP:  columns that share an RMS factor, which scales and sums get; 0: none
    """
    values, scales, sums, squares = x
    C: gl.constexpr = gl.SliceLayout(2, chunk_layout(WARPS))
    L: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [WARPS, 1], [1, 0])
    values += step * 128
    even = (_words(values, C, L), _words(values + COLS // 4, C, L))
    odd = (_words(values + COLS // 8, C, L), _words(values + (COLS // 4 + COLS // 8), C, L))
    chunk = gl.expand_dims(gl.arange(0, 32, gl.SliceLayout(0, C)), 0) + step * 32
    even_scale, odd_scale = gl.load(scales + chunk), gl.load(scales + COLS // 32 + chunk)
    even_sum, odd_sum = gl.load(sums + chunk), gl.load(sums + COLS // 32 + chunk)
    if GROUP > 0:
        factor = gl.convert_layout(_group_factor(squares, eps, step, GROUP, L), gl.SliceLayout(0, C))
        factor = gl.expand_dims(factor, 0)
        even_scale *= factor
        odd_scale *= factor
        even_sum *= factor
        odd_sum *= factor
    return even, odd, even_scale, odd_scale, even_sum, odd_sum


@gluon.jit
def _dot(a, x, UNSIGNED: gl.constexpr):
    """Sums of sixteen products: words a of signed bytes, or UNSIGNED ones, times 256 * high + low of x, as f32."""
    high, low = x
    h0, _ = gl.broadcast(high[0], a[0])
    h1, _ = gl.broadcast(high[1], a[0])
    h2, _ = gl.broadcast(high[2], a[0])
    h3, _ = gl.broadcast(high[3], a[0])
    l0, _ = gl.broadcast(low[0], a[0])
    l1, _ = gl.broadcast(low[1], a[0])
    l2, _ = gl.broadcast(low[2], a[0])
    l3, _ = gl.broadcast(low[3], a[0])
    total = gl.inline_asm_elementwise(
        _UNSIGNED_ASM if UNSIGNED else _SIGNED_ASM, "=r,r,r,r,r,r,r,r,r,r,r,r,r",
        [a[0], a[1], a[2], a[3], h0, h1, h2, h3, l0, l1, l2, l3], dtype=gl.int32, is_pure=True, pack=1,
    )
    return total.to(gl.float32)


@gluon.jit
def _half(word):
    return (word & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)


@gluon.jit
def _supers(buffer, C: gl.constexpr, WARPS: gl.constexpr):
    """Each chunk's super of a stage, [16, 32]."""
    L: gl.constexpr = gl.BlockedLayout([16 // WARPS, 1, 1], [1, 4, 8], [WARPS, 1, 1], [2, 1, 0])
    four = gl.expand_dims(buffer.load(gl.SliceLayout(2, L)), 2)
    each, _ = gl.broadcast(four, gl.full((16, 4, 8), 0, four.dtype, L))
    return gl.convert_layout(gl.reshape(each, (16, 32)), C)


@gluon.jit
def _dot_q4_k(q, pair, supers, x):
    even, odd, even_scale, odd_scale, even_sum, odd_sum = x
    q0, q1, q2, q3 = q
    low = (q0 & 0x0F0F0F0F, q1 & 0x0F0F0F0F, q2 & 0x0F0F0F0F, q3 & 0x0F0F0F0F)
    high = (q0 & -0x0F0F0F10, q1 & -0x0F0F0F10, q2 & -0x0F0F0F10, q3 & -0x0F0F0F10)  # sixteen times their size
    product = _dot(low, even, False) * even_scale + _dot(high, odd, True) * (odd_scale * 0.0625)
    scale = _half(supers) * (pair & 0xFF).to(gl.float32)
    minimum = _half(supers >> 16) * ((pair >> 8) & 0xFF).to(gl.float32)
    return product * scale - minimum * (even_sum + odd_sum)


@gluon.jit
def _dot_q6_k(q, high, pair, supers, x, C: gl.constexpr):
    even, odd, even_scale, odd_scale, even_sum, odd_sum = x
    q0, q1, q2, q3 = q
    b, c = gl.split(high)
    b, c = _same(b, C), _same(c, C)
    LOW: gl.constexpr = 0x0F0F0F0F
    TWO: gl.constexpr = 0x30303030
    first = ((q0 & LOW) | ((b << 4) & TWO), (q1 & LOW) | ((b << 2) & TWO), (q2 & LOW) | (b & TWO),
             (q3 & LOW) | ((b >> 2) & TWO))
    second = (((q0 >> 4) & LOW) | ((c << 4) & TWO), ((q1 >> 4) & LOW) | ((c << 2) & TWO), ((q2 >> 4) & LOW) | (c & TWO),
              ((q3 >> 4) & LOW) | ((c >> 2) & TWO))
    d = supers.to(gl.float32)
    product = (_dot(first, even, False) * even_scale - 32.0 * even_sum) * (d * ((pair << 24) >> 24).to(gl.float32))
    return product + (_dot(second, odd, False) * odd_scale - 32.0 * odd_sum) * (d * (pair >> 8).to(gl.float32))


@gluon.jit
def dot_stage(FMT: gl.constexpr, buffers, stage, x, WARPS: gl.constexpr):
    """Products of a stage's rows with `load_columns`, [16, 32 chunks] f32."""
    q_buffer, h_buffer, s_buffer, d_buffer = buffers
    C: gl.constexpr = gl.SliceLayout(2, chunk_layout(WARPS))
    q = _split(gl.reshape(q_buffer.index(stage).load(chunk_layout(WARPS)), (16, 32, 2, 2)), C)
    pair = s_buffer.index(stage).load(C).to(gl.int32)
    supers = _supers(d_buffer.index(stage), C, WARPS)
    if FMT == Q6_K:
        high = h_buffer.index(stage).load(chunk_layout(WARPS, 2))
        product = _dot_q6_k(q, high, pair, supers, x, C)
    else:
        product = _dot_q4_k(q, pair, supers, x)
    return product


@gluon.jit
def rms_factor(squares_ptr, eps, COLS: gl.constexpr, WARPS: gl.constexpr):
    """1 / sqrt(mean(x^2) + eps) of one row from its COLS / 16 partial sums."""
    L: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [WARPS, 1], [1, 0])
    warp = gl.expand_dims(gl.arange(0, WARPS, gl.SliceLayout(1, L)), 1)
    total = gl.zeros((WARPS, 32), gl.float32, L)
    for start in gl.static_range(0, COLS // 16, 32):
        place = gl.expand_dims(gl.arange(0, 32, gl.SliceLayout(0, L)), 0) + start
        total += gl.load(squares_ptr + (place + warp * 0))
    return gl.max(1.0 / gl.sqrt(gl.sum(total, axis=1) / COLS + eps), axis=0)  # every warp has the same


@gluon.jit
def store_block(x, block, values_ptr, scales_ptr, sums_ptr, COLS: gl.constexpr, L: gl.constexpr):
    """`activation.quantize_block` of x [16] in layout L."""
    place = (block % 2) * (COLS // 32) + block // 2
    largest = gl.max(gl.abs(x), axis=0)
    scale = largest / LEVELS
    integers = gl.floor(x * (LEVELS / gl.where(largest > TINY, largest, TINY)) + 0.5)
    whole = integers.to(gl.int32)
    high = (whole + 128) >> 8
    target = values_ptr + place * 16 + gl.arange(0, 16, L)
    gl.store(target, high.to(gl.int8))
    gl.store(target + COLS, (whole - (high << 8)).to(gl.int8))
    gl.store(scales_ptr + place, scale)
    gl.store(sums_ptr + place, scale * gl.sum(integers, axis=0))

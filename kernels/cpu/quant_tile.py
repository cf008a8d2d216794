"""Generates the inner loop of all products by quantised matrices: 16 output columns of 1 to 8 rows at once.

A row's sums are formed block after block in one order, whatever the number of rows: its bits depend on nothing else.

Activations are 16-bit integers v = 256 * high + low, two signed bytes (eight bits alone move the logits too much: a
mean KL divergence of 2e-3 to 6e-3 for the embedded default). [num_rows, num_columns / 32] records of 96 bytes:
    32 x high | 32 x low | f32 scale | f32 scale * sum(v) | int32 -sum(v) | int32 -sum of first, last 16 v | padding
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from kernels.cpu.dot import dot4
from kernels.cpu.packed_layout import BLOCK, PANEL_ROWS, PackedLayout
from kernels.cpu.simd import (
    F16,
    F32,
    I8,
    I32,
    I64,
    V16F,
    V16I,
    address,
    call,
    constant,
    fma,
    load_from,
    splat,
)

RECORD_BYTES = 96
AT_LOW, AT_SCALE, AT_SCALED_SUM, AT_NEGATED_SUM, AT_NEGATED_HALVES = 32, 64, 68, 72, 76
VECTOR_BYTES = 64
V64I8 = ir.VectorType(I8, 64)


class QuantTile:
    """The tile of a layout and a number of rows, emitted with builder `b`."""

    def __init__(self, b: Any, layout: PackedLayout, num_rows: int) -> None:
        self._b, self._layout, self._num_rows = b, layout, num_rows

    def emit(self, panel: Any, x: Any, x_stride: Any, out: Any, out_stride: Any, init: Any, init_stride: Any,
             num_columns: Any) -> None:
        """out[r, 0..15] = init[r, 0..15] + sum over the columns of weight * x[r]; addresses, and strides in bytes.

        A stride of 0 repeats the row of init.
        """
        b, rows = self._b, range(self._num_rows)
        offsets = [b.mul(x_stride, ir.Constant(I64, r)) for r in rows]
        totals = [load_from(b, b.add(init, b.mul(init_stride, ir.Constant(I64, r))), 0, V16F, 4) for r in rows]
        num_blocks = b.udiv(num_columns, ir.Constant(I64, BLOCK))
        before, body, after = b.block, b.append_basic_block(), b.append_basic_block()
        b.cbranch(b.icmp_unsigned(">", num_blocks, ir.Constant(I64, 0)), body, after)
        b.position_at_end(body)
        index, record = b.phi(I64), b.phi(I64)
        sums = [b.phi(V16F) for _ in rows]
        starts = (ir.Constant(I64, 0), x, *totals)
        for phi, start in zip((index, record, *sums), starts):
            phi.add_incoming(start, before)
        results = self._block(panel, index, [b.add(record, offset) for offset in offsets], list(sums))
        following = b.add(index, ir.Constant(I64, 1))
        values = (following, b.add(record, ir.Constant(I64, RECORD_BYTES)), *results)
        for phi, value in zip((index, record, *sums), values):
            phi.add_incoming(value, body)
        b.cbranch(b.icmp_unsigned("<", following, num_blocks), body, after)
        b.position_at_end(after)
        for r in rows:
            total = b.phi(V16F)
            total.add_incoming(totals[r], before)
            total.add_incoming(results[r], body)
            totals[r] = total
        for r in rows:
            b.store(totals[r], address(b, b.add(out, b.mul(out_stride, ir.Constant(I64, r))), 0, V16F), align=4)

    def row(self, panel: Any, index: Any, lane: Any) -> list[Any]:
        """Both halves of block `index` of the panel's row `lane`, dequantised."""
        b, layout = self._b, self._layout
        factors, at = self._place(panel, index)
        words, end = self._words(at)
        scales, minimum = self._scales(factors, at, end)
        lane = b.trunc(lane, I32)
        halves = []
        for half in range(2):
            four = ir.Constant(ir.VectorType(I32, 4), ir.Undefined)
            for k in range(4):
                four = b.insert_element(four, b.extract_element(words[4 * half + k], lane), ir.Constant(I32, k))
            quants = b.zext(b.bitcast(four, ir.VectorType(I8, 16)), V16I)
            values = b.sitofp(b.sub(quants, constant(V16I, layout.zero)), V16F)
            values = b.fmul(splat(b, b.extract_element(scales[half % len(scales)], lane)), values)
            halves.append(values if minimum is None else b.fadd(values, splat(b, b.extract_element(minimum, lane))))
        return halves

    def _place(self, panel: Any, index: Any) -> tuple[Any, Any]:
        """Addresses of a block's factors and of the block."""
        b, layout = self._b, self._layout
        if not layout.super_bytes:
            at = b.add(panel, b.mul(index, ir.Constant(I64, layout.block_bytes)))
            return at, at
        step_bytes = layout.super_bytes + 8 * layout.block_bytes
        factors = b.add(panel, b.mul(b.lshr(index, ir.Constant(I64, 3)), ir.Constant(I64, step_bytes)))
        within = b.mul(b.and_(index, ir.Constant(I64, 7)), ir.Constant(I64, layout.block_bytes))
        return factors, b.add(b.add(factors, within), ir.Constant(I64, layout.super_bytes))

    def _block(self, panel: Any, index: Any, records: list[Any], sums: list[Any]) -> list[Any]:
        b, layout = self._b, self._layout
        factors, at = self._place(panel, index)
        words, end = self._words(at)
        scales, minimum = self._scales(factors, at, end)
        results = []
        for record, total in zip(records, sums):
            bits = 8 if layout.table else layout.bits
            per_scale = len(words) // len(scales)
            x_scale = splat(b, load_from(b, record, AT_SCALE, F32, 4))
            for part, scale in enumerate(scales):
                span, dot = range(part * per_scale, (part + 1) * per_scale), constant(V16I, 0)
                for k in span:
                    dot = dot4(b, dot, words[k], self._bytes_of(record, 4 * k), bits)
                dot = b.shl(dot, constant(V16I, 8))
                if layout.zero:
                    at_sum = AT_NEGATED_SUM if len(scales) == 1 else AT_NEGATED_HALVES + 4 * part
                    dot = b.add(dot, self._minus_zero(record, at_sum))
                for k in span:
                    dot = dot4(b, dot, words[k], self._bytes_of(record, AT_LOW + 4 * k), bits)
                total = fma(b, b.sitofp(dot, V16F), b.fmul(scale, x_scale), total)
            if minimum is not None:
                total = fma(b, minimum, splat(b, load_from(b, record, AT_SCALED_SUM, F32, 4)), total)
            results.append(total)
        return results

    def _bytes_of(self, record: Any, offset: int) -> Any:
        """Four activations' bytes for every row of the panel."""
        return splat(self._b, load_from(self._b, record, offset, I32, 4))

    def _minus_zero(self, record: Any, at_sum: int) -> Any:
        negated = splat(self._b, load_from(self._b, record, at_sum, I32, 4))
        return self._b.shl(negated, constant(V16I, self._layout.zero.bit_length() - 1))

    def _words(self, at: Any) -> tuple[list[Any], int]:
        """Eight vectors of four unsigned bytes a row, and the offset behind the quants."""
        b, bits = self._b, self._layout.bits
        if bits == 8:
            return [self._vector(at, VECTOR_BYTES * k) for k in range(8)], 8 * VECTOR_BYTES
        packed = [self._vector(at, VECTOR_BYTES * k) for k in range(4)]
        low = constant(V16I, 0x0F0F0F0F)
        words = [b.and_(v, low) for v in packed] + [b.and_(b.lshr(v, constant(V16I, 4)), low) for v in packed]
        end = 4 * VECTOR_BYTES
        if bits == 5:
            high = self._vector(at, end)
            words = [b.or_(w, self._field(high, g, 0x10101010)) for g, w in enumerate(words)]
            end += VECTOR_BYTES
        elif bits == 6:
            pairs = [self._vector(at, end + VECTOR_BYTES * h) for h in range(2)]
            words = [b.or_(w, self._field(pairs[g // 4], 2 * (g % 4), 0x30303030)) for g, w in enumerate(words)]
            end += 2 * VECTOR_BYTES
        if self._layout.table:
            words = [self._look_up(w) for w in words]
        return words, end

    def _field(self, vector: Any, bit: int, mask: int) -> Any:
        """Bits from `bit` of every byte on, moved to bit 4 on and masked."""
        b, shift = self._b, 4 - bit
        moved = b.shl(vector, constant(V16I, shift)) if shift > 0 else b.lshr(vector, constant(V16I, -shift))
        return b.and_(moved, constant(V16I, mask))

    def _look_up(self, codes: Any) -> Any:
        """Values of 4-bit codes, moved up to be unsigned."""
        b, layout = self._b, self._layout
        shuffle_bytes = ir.VectorType(I8, 16)
        table = ir.Constant(shuffle_bytes, [value + layout.zero for value in layout.table])
        quarters = []
        for lane in range(4):
            part = b.shuffle_vector(
                b.bitcast(codes, V64I8), ir.Constant(V64I8, ir.Undefined),
                ir.Constant(ir.VectorType(I32, 16), list(range(16 * lane, 16 * lane + 16))),
            )
            quarters.append(call(b, "llvm.x86.ssse3.pshuf.b.128", shuffle_bytes, table, part))
        lanes32 = ir.Constant(ir.VectorType(I32, 32), list(range(32)))
        halves = [b.shuffle_vector(quarters[i], quarters[i + 1], lanes32) for i in (0, 2)]
        whole = b.shuffle_vector(*halves, ir.Constant(ir.VectorType(I32, 64), list(range(64))))
        return b.bitcast(whole, V16I)

    def _vector(self, at: Any, offset: int) -> Any:
        return load_from(self._b, at, offset, V16I, 16)

    def _halves(self, at: Any, offset: int) -> Any:
        return self._b.fpext(load_from(self._b, at, offset, ir.VectorType(F16, PANEL_ROWS), 16), V16F)

    def _bytes(self, at: Any, offset: int, is_signed: bool) -> Any:
        b = self._b
        loaded = load_from(b, at, offset, ir.VectorType(I8, PANEL_ROWS), 16)
        return b.sitofp(b.sext(loaded, V16I), V16F) if is_signed else b.sitofp(b.zext(loaded, V16I), V16F)

    def _scales(self, factors: Any, at: Any, end: int) -> tuple[list[Any], Any]:
        """One scale for a block or one for each half, and what is added for every unit of activation."""
        b, kind = self._b, self._layout.scale
        if kind == "f16":
            return [self._halves(at, end)], None
        if kind == "f16_min":
            return [self._halves(at, end)], self._halves(at, end + 2 * PANEL_ROWS)
        if kind == "e8m0":
            exponents = b.zext(load_from(b, at, end, ir.VectorType(I8, PANEL_ROWS), 16), V16I)
            # 2^(e - 128); the two exponents whose power is below the normal numbers give 0
            normal = b.shl(b.sub(exponents, constant(V16I, 1)), constant(V16I, 23))
            is_small = b.icmp_signed("<", exponents, constant(V16I, 2))
            return [b.bitcast(b.select(is_small, constant(V16I, 0), normal), V16F)], None
        factor = self._halves(factors, 0)
        if kind == "u8_min":
            minimum = b.fmul(self._halves(factors, 2 * PANEL_ROWS), self._bytes(at, end + PANEL_ROWS, False))
            return [b.fmul(factor, self._bytes(at, end, False))], b.fneg(minimum)
        count = 2 if kind == "i8_halves" else 1
        return [b.fmul(factor, self._bytes(at, end + i * PANEL_ROWS, True)) for i in range(count)], None

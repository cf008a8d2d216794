"""How a quantised matrix lies in memory for the CPU: panels of 16 rows, blocks of 32 columns, one stream of bytes.

    panel   = its blocks, columns ascending; K types: per 256 columns the factors of 16 rows, then 8 blocks
    block   = quants | fifth bits or two-bit pairs | scales
    quants  = words w of 16 rows each, w = 0..3 (4 to 6 bits) or 0..7 (8 bits), four elements a word and row:
              nibbles: byte j of word w holds the elements 4 w + j (low) and 16 + 4 w + j (high); else 4 w + j
    fifth bits of 16 rows: bit g of byte j belongs to element 4 g + j
    two-bit pairs, words h = 0, 1 of 16 rows: bits 2 w of byte j belong to element 16 h + 4 w + j

A vector of 64 bytes is thus one word of 16 rows, the operand of a dot instruction. Element = scale * (q - zero) - min.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernels.quant_format import QuantFormat

PANEL_ROWS = 16
BLOCK = 32                # columns that share a scale; activations are quantised in the same blocks

# f16: one factor; f16_min: factor and minimum (added); u8_min: of a K type, times its factor and minimum (subtracted);
# i8: of a K type; i8_halves: the same, one for each 16 columns; e8m0: a power of two.
Scale = Literal["f16", "f16_min", "u8_min", "i8", "i8_halves", "e8m0"]
_SCALE_BYTES: dict[Scale, int] = {"f16": 2, "f16_min": 4, "u8_min": 2, "i8": 1, "i8_halves": 2, "e8m0": 1}


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """A format as the kernels see it.

    zero:  what is subtracted from the unsigned quants
    table: the quants are codes of these signed values
    """

    bits: int
    scale: Scale
    zero: int = 0
    table: tuple[int, ...] = ()

    @property
    def block_bytes(self) -> int:
        """Of 16 rows and 32 columns."""
        return PANEL_ROWS * (BLOCK * self.bits // 8 + _SCALE_BYTES[self.scale])

    @property
    def super_bytes(self) -> int:
        """Of the factors before 8 blocks; 0: there are none."""
        return PANEL_ROWS * {"u8_min": 4, "i8": 2, "i8_halves": 2}.get(self.scale, 0)

    @property
    def columns(self) -> int:
        """Columns come in multiples of this."""
        return 8 * BLOCK if self.super_bytes else BLOCK

    def panel_bytes(self, num_columns: int) -> int:
        return num_columns // BLOCK * self.block_bytes + num_columns // self.columns * self.super_bytes


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

LAYOUTS: dict[QuantFormat, PackedLayout] = {
    QuantFormat.Q4_0: PackedLayout(4, "f16", 8),
    QuantFormat.Q4_1: PackedLayout(4, "f16_min"),
    QuantFormat.Q5_0: PackedLayout(5, "f16", 16),
    QuantFormat.Q5_1: PackedLayout(5, "f16_min"),
    QuantFormat.Q8_0: PackedLayout(8, "f16", 128),
    QuantFormat.Q4_K: PackedLayout(4, "u8_min"),
    QuantFormat.Q5_K: PackedLayout(5, "u8_min"),
    QuantFormat.Q6_K: PackedLayout(6, "i8_halves", 32),
    QuantFormat.IQ4_NL: PackedLayout(4, "f16", 128, _IQ4),
    QuantFormat.IQ4_XS: PackedLayout(4, "i8", 128, _IQ4),
    QuantFormat.MXFP4: PackedLayout(4, "e8m0", 128, _FP4_DOUBLED),
}

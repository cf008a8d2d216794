"""The tensor element types of GGUF: their ids, and how many bytes a block of elements takes.

Knows sizes only; what the bytes of a block mean is in the quants modules.
"""

from __future__ import annotations

from enum import IntEnum


class GGMLType(IntEnum):
    """Type ids as ggml writes them in a tensor table."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41

    @property
    def block_size(self) -> int:
        """Elements in one block; a row holds a whole number of blocks."""
        return _SIZES[self][0]

    @property
    def type_size(self) -> int:
        """Bytes of one block."""
        return _SIZES[self][1]

    def row_bytes(self, num_columns: int) -> int:
        """Bytes of a row of `num_columns` elements, a multiple of `block_size`."""
        return num_columns // self.block_size * self.type_size


# (elements, bytes) of one block: the struct sizes of ggml-common.h.
_SIZES: dict[GGMLType, tuple[int, int]] = {
    GGMLType.F32: (1, 4),
    GGMLType.F16: (1, 2),
    GGMLType.BF16: (1, 2),
    GGMLType.F64: (1, 8),
    GGMLType.I8: (1, 1),
    GGMLType.I16: (1, 2),
    GGMLType.I32: (1, 4),
    GGMLType.I64: (1, 8),
    GGMLType.Q4_0: (32, 18),
    GGMLType.Q4_1: (32, 20),
    GGMLType.Q5_0: (32, 22),
    GGMLType.Q5_1: (32, 24),
    GGMLType.Q8_0: (32, 34),
    GGMLType.IQ4_NL: (32, 18),
    GGMLType.MXFP4: (32, 17),
    GGMLType.NVFP4: (64, 36),
    GGMLType.Q1_0: (128, 18),
    GGMLType.Q2_K: (256, 84),
    GGMLType.Q3_K: (256, 110),
    GGMLType.Q4_K: (256, 144),
    GGMLType.Q5_K: (256, 176),
    GGMLType.Q6_K: (256, 210),
    GGMLType.IQ1_S: (256, 50),
    GGMLType.IQ1_M: (256, 56),
    GGMLType.IQ2_XXS: (256, 66),
    GGMLType.IQ2_XS: (256, 74),
    GGMLType.IQ2_S: (256, 82),
    GGMLType.IQ3_XXS: (256, 98),
    GGMLType.IQ3_S: (256, 110),
    GGMLType.IQ4_XS: (256, 136),
    GGMLType.TQ1_0: (256, 54),
    GGMLType.TQ2_0: (256, 66),
}

# Ids that ggml once wrote or newly writes, for the error message; their sizes are not known here.
UNSUPPORTED_TYPE_NAMES: dict[int, str] = {
    4: "Q4_2, which ggml has retired",
    5: "Q4_3, which ggml has retired",
    9: "Q8_1, which is for activations only",
    15: "Q8_K, which is for activations only",
    31: "Q4_0_4_4, a repacked type that ggml has removed",
    32: "Q4_0_4_8, a repacked type that ggml has removed",
    33: "Q4_0_8_8, a repacked type that ggml has removed",
    36: "IQ4_NL_4_4, a repacked type that ggml has removed",
    37: "IQ4_NL_4_8, a repacked type that ggml has removed",
    38: "IQ4_NL_8_8, a repacked type that ggml has removed",
    42: "Q2_0, which is newer than this reader",
}

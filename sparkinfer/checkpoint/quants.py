"""Turns the raw blocks of any GGUF tensor type into float32, bit for bit as ggml does.

Knows bytes and types; nothing of files or tensor names.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparkinfer.checkpoint import quants_32, quants_iq, quants_k, quants_ternary
from sparkinfer.checkpoint.ggml_type import GGMLType
from sparkinfer.checkpoint.quant_fields import Bytes, Floats
from sparkinfer.errors import CheckpointError

__all__ = ["DECODABLE_TYPES", "GGMLType", "dequantize"]

CHUNK_ELEMENTS = 1 << 20  # decoded at a time: bounds the temporaries of a decoder to a few times 4 MiB


def _plain(dtype: str) -> Callable[[Bytes], Floats]:
    return lambda blocks: blocks.view(dtype).astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    """The upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


_DECODERS: dict[GGMLType, Callable[[Bytes], Floats]] = {
    GGMLType.F32: _plain("<f4"),
    GGMLType.F16: _plain("<f2"),
    GGMLType.F64: _plain("<f8"),
    GGMLType.BF16: _bf16,
    GGMLType.I8: _plain("i1"),
    GGMLType.I16: _plain("<i2"),
    GGMLType.I32: _plain("<i4"),
    GGMLType.I64: _plain("<i8"),
    GGMLType.Q4_0: quants_32.q4_0,
    GGMLType.Q4_1: quants_32.q4_1,
    GGMLType.Q5_0: quants_32.q5_0,
    GGMLType.Q5_1: quants_32.q5_1,
    GGMLType.Q8_0: quants_32.q8_0,
    GGMLType.IQ4_NL: quants_32.iq4_nl,
    GGMLType.MXFP4: quants_32.mxfp4,
    GGMLType.NVFP4: quants_32.nvfp4,
    GGMLType.Q2_K: quants_k.q2_k,
    GGMLType.Q3_K: quants_k.q3_k,
    GGMLType.Q4_K: quants_k.q4_k,
    GGMLType.Q5_K: quants_k.q5_k,
    GGMLType.Q6_K: quants_k.q6_k,
    GGMLType.IQ4_XS: quants_k.iq4_xs,
    GGMLType.IQ1_S: quants_iq.iq1_s,
    GGMLType.IQ1_M: quants_iq.iq1_m,
    GGMLType.IQ2_XXS: quants_iq.iq2_xxs,
    GGMLType.IQ2_XS: quants_iq.iq2_xs,
    GGMLType.IQ2_S: quants_iq.iq2_s,
    GGMLType.IQ3_XXS: quants_iq.iq3_xxs,
    GGMLType.IQ3_S: quants_iq.iq3_s,
    GGMLType.TQ1_0: quants_ternary.tq1_0,
    GGMLType.TQ2_0: quants_ternary.tq2_0,
}
DECODABLE_TYPES = frozenset(_DECODERS)


def dequantize(raw: Bytes, ggml_type: GGMLType) -> Floats:
    """Decode rows of blocks.

    raw:     [rows, row_bytes]  uint8, rows contiguous, row_bytes a multiple of the type's block
    returns  [rows, columns]    float32; I64, I32 and F64 are rounded to it
    Raises CheckpointError for a type that has no decoder here.
    """
    decode = _DECODERS.get(ggml_type)
    if decode is None:
        names = ", ".join(sorted(known.name for known in DECODABLE_TYPES))
        raise CheckpointError(f"type {ggml_type.name} cannot be decoded; these can: {names}")
    blocks = np.ascontiguousarray(raw).reshape(-1, ggml_type.type_size)
    values = np.empty((len(blocks), ggml_type.block_size), np.float32)
    step = max(1, CHUNK_ELEMENTS // ggml_type.block_size)
    with np.errstate(all="ignore"):  # damaged scales may be infinite; what follows from that is the file's business
        for start in range(0, len(blocks), step):
            values[start : start + step] = decode(blocks[start : start + step])
    return values.reshape(len(raw), -1)

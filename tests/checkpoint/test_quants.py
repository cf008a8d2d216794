"""Every decodable type against gguf-py on arbitrary bytes, and against vectors that ggml itself made; bit for bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from sparkinfer.checkpoint import quants
from sparkinfer.checkpoint.quants import DECODABLE_TYPES, GGMLType, dequantize
from sparkinfer.errors import CheckpointError

VECTORS = Path(__file__).parents[1] / "data/quants/vectors.npz"
PLAIN = {GGMLType.F32, GGMLType.F64, GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64}
PACKED = sorted(DECODABLE_TYPES - PLAIN)

# Byte offsets of the half-precision scales in a block.
HALVES = {
    GGMLType.Q4_0: (0,), GGMLType.Q4_1: (0, 2), GGMLType.Q5_0: (0,), GGMLType.Q5_1: (0, 2), GGMLType.Q8_0: (0,),
    GGMLType.IQ4_NL: (0,), GGMLType.Q2_K: (80, 82), GGMLType.Q3_K: (108,), GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2), GGMLType.Q6_K: (208,), GGMLType.IQ4_XS: (0,), GGMLType.TQ1_0: (52,), GGMLType.TQ2_0: (64,),
    GGMLType.IQ1_S: (0,), GGMLType.IQ2_XXS: (0,), GGMLType.IQ2_XS: (0,), GGMLType.IQ2_S: (0,),
    GGMLType.IQ3_XXS: (0,), GGMLType.IQ3_S: (0,),
}
EXTREMES = np.array([0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 1.0, -1.0, 65504.0, -65504.0], np.float16)


def reference(raw: np.ndarray, ggml_type: GGMLType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.dequantize(raw, gguf.GGMLQuantizationType(int(ggml_type)))


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == theirs.dtype == np.float32
    assert ours.shape == theirs.shape
    differs = (ours.view(np.uint32) != theirs.view(np.uint32)) & ~(np.isnan(ours) & np.isnan(theirs))
    assert not differs.any(), f"{differs.sum()} values differ, the first at {np.argwhere(differs)[0]}"


def random_blocks(ggml_type: GGMLType, rows: int, blocks: int) -> np.ndarray:
    rng = np.random.default_rng(int(ggml_type))
    return rng.integers(0, 256, (rows, blocks * ggml_type.type_size), dtype=np.uint8)


@pytest.mark.parametrize("ggml_type", PACKED, ids=lambda t: t.name)
def test_arbitrary_bytes_decode_as_in_gguf_py(ggml_type: GGMLType) -> None:
    raw = random_blocks(ggml_type, 300, 3)
    assert_same_bits(dequantize(raw, ggml_type), reference(raw, ggml_type))


@pytest.mark.parametrize("ggml_type", sorted(HALVES), ids=lambda t: t.name)
def test_extreme_scales_decode_as_in_gguf_py(ggml_type: GGMLType) -> None:
    raw = random_blocks(ggml_type, len(EXTREMES) ** 2, 1)
    pairs = np.array([(first, second) for first in EXTREMES for second in EXTREMES], np.float16)
    for at, scale in zip(HALVES[ggml_type], pairs.T, strict=False):
        raw[:, at : at + 2] = scale.astype("<f2").reshape(-1, 1).view(np.uint8)
    ours = dequantize(raw, ggml_type)
    assert_same_bits(ours, reference(raw, ggml_type))
    assert not np.isnan(ours).any()


@pytest.mark.parametrize("ggml_type", [GGMLType.MXFP4, GGMLType.NVFP4], ids=lambda t: t.name)
def test_every_exponent_byte(ggml_type: GGMLType) -> None:
    raw = random_blocks(ggml_type, 256, 1)
    raw[:, :4 if ggml_type is GGMLType.NVFP4 else 1] = np.arange(256, dtype=np.uint8)[:, None]
    assert_same_bits(dequantize(raw, ggml_type), reference(raw, ggml_type))


def vector_names() -> list[str]:
    with np.load(VECTORS) as vectors:
        return sorted(name.removesuffix("_raw") for name in vectors if name.endswith("_raw"))


@pytest.mark.parametrize("name", vector_names())
def test_blocks_made_by_ggml(name: str) -> None:
    with np.load(VECTORS) as vectors:
        raw, expected = vectors[f"{name}_raw"], vectors[f"{name}_deq"]
    assert_same_bits(dequantize(raw, GGMLType[name.removesuffix("_bits").upper()]), expected)


@pytest.mark.parametrize(
    ("ggml_type", "dtype"),
    [(GGMLType.F32, "<f4"), (GGMLType.F64, "<f8"), (GGMLType.I8, "i1"), (GGMLType.I16, "<i2"), (GGMLType.I32, "<i4"),
     (GGMLType.I64, "<i8")],
    ids=lambda value: getattr(value, "name", value),
)
def test_plain_numbers(ggml_type: GGMLType, dtype: str) -> None:
    numbers = np.array([[0, 1, -1, 100, -128, 127], [3, 4, 5, 6, 7, 8]], dtype)
    assert_same_bits(dequantize(numbers.view(np.uint8), ggml_type), numbers.astype(np.float32))


def test_a_q4_k_block_by_hand() -> None:
    """Sub-block 0: scale 3, min 2; sub-block 4: scale 0x21, min 0x12, whose upper bits sit in bytes 0 and 4."""
    block = np.zeros((1, 144), np.uint8)
    block[0, :4] = np.array([2.0, 0.5], "<f2").view(np.uint8)
    block[0, 4] = 3 | 0b10 << 6    # scale 0, and the top of scale 4
    block[0, 8] = 2 | 0b01 << 6    # min 0, and the top of min 4
    block[0, 12] = 0x21            # low nibbles: scale 4 = 1, min 4 = 2
    block[0, 16] = 0x5F            # element 0 is 15, element 32 is 5
    block[0, 16 + 64] = 0x07       # element 128 is 7
    values = dequantize(block, GGMLType.Q4_K)[0]
    assert values[0] == 2 * 3 * 15 - 0.5 * 2
    assert values[1] == -0.5 * 2
    assert values[32] == 0                            # scale and min of sub-block 1 are zero
    assert values[128] == 2 * 33 * 7 - 0.5 * 18
    assert values[129] == -0.5 * 18


def test_long_rows_are_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_blocks(GGMLType.Q8_0, 7, 11)
    whole = dequantize(raw, GGMLType.Q8_0)
    monkeypatch.setattr(quants, "CHUNK_ELEMENTS", 96)
    assert_same_bits(dequantize(raw, GGMLType.Q8_0), whole)


def test_a_type_without_decoder_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"type Q1_0 cannot be decoded; these can: BF16, .*Q4_K"):
        dequantize(np.zeros((1, 18), np.uint8), GGMLType.Q1_0)


def test_sizes_are_those_of_gguf_py() -> None:
    for ggml_type in GGMLType:
        sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(int(ggml_type))]
        assert (ggml_type.block_size, ggml_type.type_size) == sizes, ggml_type.name
        assert gguf.GGMLQuantizationType(int(ggml_type)).name == ggml_type.name

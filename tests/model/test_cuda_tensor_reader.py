"""Matrices of every type reach the kernels' planes with the values that the file's reader gives them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from kernels.quant_format import QuantFormat
from kernels.reference.quant_weight import dequantize
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.quants import DECODABLE_TYPES
from sparkinfer.model.cuda.tensor_reader import TensorReader

Q = gguf.GGMLQuantizationType
CPU = torch.device("cpu")
# type -> where its blocks have f16 fields, which random bits would make enormous
HALVES = {Q.Q2_K: (80, 82), Q.Q3_K: (108,), Q.IQ2_XXS: (0,), Q.IQ3_S: (0,), Q.IQ1_S: (0,), Q.TQ1_0: (52,)}


def _file(path: Path, tensors: dict[str, tuple[np.ndarray, Q]]) -> GGUFFile:
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, (raw, kind) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile.open(path)


def _blocks(kind: Q, rows: int, seed: int = 0) -> np.ndarray:
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(seed).integers(0, 256, (rows, 256 // elements, size), np.uint8)
    for offset in HALVES.get(kind, ()):
        blocks[..., offset : offset + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    if kind == Q.NVFP4:
        blocks[..., :4] = 8 + blocks[..., :4] % 64
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("kind", sorted(HALVES))
def test_types_without_kernels_become_f16(kind: Q, tmp_path: Path) -> None:
    file = _file(tmp_path / "m.gguf", {"a.weight": (_blocks(kind, 6), kind)})
    order = torch.tensor([5, 0, 3, 1, 2, 4])
    weight = TensorReader(file, CPU, lambda done, total: None).weight("a.weight", order)
    assert weight.format == QuantFormat.F16
    expected = torch.from_numpy(file.dequantize("a.weight").copy())[order]
    torch.testing.assert_close(dequantize(weight), expected, rtol=2**-11, atol=1e-7)


def test_numbers_too_large_for_f16_stay_f32(tmp_path: Path) -> None:
    values = np.full((2, 64), 1e5, np.float64)
    file = _file(tmp_path / "m.gguf", {"a.weight": (values, Q.F64), "b.weight": (_blocks(Q.Q2_K, 2), Q.Q2_K)})
    first, second = TensorReader(file, CPU, lambda done, total: None).plain(["a.weight", "b.weight"])
    assert (first.format, second.format) == (QuantFormat.F32, QuantFormat.F32)
    assert torch.equal(dequantize(first), torch.full((2, 64), 1e5))


@pytest.mark.parametrize("num_factors", [1, 3])
def test_nvfp4_takes_its_factors(num_factors: int, tmp_path: Path) -> None:
    factors = np.linspace(0.001, 0.37, num_factors, dtype=np.float32)
    tensors = {"x_exps.weight": (_blocks(Q.NVFP4, 6), Q.NVFP4), "x_exps.scale": (factors, Q.F32)}
    file = _file(tmp_path / "m.gguf", tensors)
    reader = TensorReader(file, CPU, lambda done, total: None)
    expected = file.dequantize("x_exps.weight") * np.repeat(factors, 6 // num_factors)[:, None]
    np.testing.assert_array_equal(dequantize(reader.weight("x_exps.weight")).numpy(), expected)
    (plain,) = reader.plain(["x_exps.weight"])
    np.testing.assert_allclose(dequantize(plain).numpy(), expected, rtol=2**-11, atol=1e-7)


def test_every_type_that_can_be_decoded_is_read() -> None:
    known = {int(kind) for kind in QuantFormat}
    assert {Q.NVFP4, Q.F16, Q.BF16, Q.F32, Q.MXFP4} <= {Q(kind) for kind in known}
    assert known < {int(kind) for kind in DECODABLE_TYPES}

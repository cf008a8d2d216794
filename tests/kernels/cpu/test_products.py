"""Products by every format against float64, and the bits of a row whatever lies beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.cpu.dot import cpu_features, dot_instruction
from kernels.cpu.packed_layout import LAYOUTS
from kernels.quant_format import QuantFormat
from kernels.reference.quant_weight import dequantize
from sparkinfer.model.cpu.weights import FLOAT_KINDS
from tests.kernels.cpu.products import dense_values, example, packed, product, unit_rows
from tests.kernels.random_weights import random_weight

pytestmark = pytest.mark.skipif(dot_instruction() is None, reason="this CPU has no instruction that the kernels need")
QUANTISED = [quant_format.name for quant_format in LAYOUTS]
FLOATS = list(FLOAT_KINDS.values())


def values(kind: str, num_out: int, num_columns: int) -> torch.Tensor:
    if kind in FLOATS:
        return dense_values(kind, num_out, num_columns).double()
    return dequantize(random_weight(num_out, num_columns, QuantFormat[kind])).double()


@pytest.mark.parametrize("kind", [*QUANTISED, *FLOATS])
@pytest.mark.parametrize(("num_rows", "num_out"), [(1, 16), (15, 37)])
def test_product_is_right(kind: str, num_rows: int, num_out: int) -> None:
    """16-bit activations are off by 2^-16 of a block's largest value at most, float32 sums by less."""
    x, weights = unit_rows(num_rows, 512), values(kind, num_out, 512)
    expected = x.double() @ weights.T
    error = (product(packed(kind, num_out, 512), x).double() - expected).abs().max()
    assert error < 2e-5 * (x.double().abs() @ weights.abs().T).max()


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "bf16"])
def test_bits_do_not_depend_on_neighbours_or_threads(kind: str) -> None:
    matrix, x = packed(kind, 53, 256), unit_rows(15, 256)
    whole = product(matrix, x)
    for first, end in [(0, 1), (1, 3), (3, 7), (7, 15), (2, 13)]:
        assert torch.equal(product(matrix, x[first:end]), whole[first:end])
    assert torch.equal(product(matrix, x, num_threads=3), whole)


def test_what_is_added() -> None:
    matrix, x, init, bias = packed("Q8_0", 37, 64), unit_rows(3, 64), torch.randn(3, 37), torch.randn(37)
    plain = product(matrix, x)
    torch.testing.assert_close(product(matrix, x, init=init), plain + init)
    torch.testing.assert_close(product(matrix, x, bias=bias), plain + bias)


def test_a_bad_value_shows() -> None:
    x = unit_rows(3, 64)
    x[1, 5] = float("nan")
    out = product(packed("Q4_1", 16, 64), x)
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


@pytest.mark.parametrize("missing", [("avx512f",), ("avx512f", "avxvnni")])
def test_other_instructions_give_the_same_bits(missing: tuple[str, ...], tmp_path: Path) -> None:
    """As on a CPU without AVX-512, and on one with neither that nor VNNI."""
    if not {"avx2", "fma", "f16c"} <= cpu_features():
        pytest.skip("this CPU has no AVX2")
    kept = sorted(name for name in cpu_features() if not name.startswith(missing))
    code = f"""
import pathlib, runpy, sys
from kernels.cpu import compile_cache, machine
machine.restrict("haswell", {set(kept)!r})
compile_cache.use_folder(pathlib.Path({str(tmp_path)!r}))
sys.argv = ["products", {str(tmp_path / 'out.pt')!r}, "Q4_1", "Q8_0", "Q6_K"]
runpy.run_module("tests.kernels.cpu.products", run_name="__main__")
"""
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)
    for kind, out in torch.load(tmp_path / "out.pt").items():
        assert torch.equal(out, example(kind))

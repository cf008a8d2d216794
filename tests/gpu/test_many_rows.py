"""The Gluon product on the card: values, parts, and the same bits for a row whatever its number."""

from __future__ import annotations

import pytest
import torch

from kernels import many_rows as module
from kernels.many_rows import FORMATS, many_rows
from kernels.pack_halves import pack_halves, pack_rows
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight
from kernels.reference.pack_halves import pack_halves as reference_pack
from kernels.reference.quant_gemv import dequantize_rows, rms_factor
from kernels.reference.quant_weight import dequantize
from kernels.repack import scale_powers
from tests.kernels.activations import random_activation, relative_error
from tests.kernels.random_weights import random_weight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
EPS = 1e-6
ROWS = 200  # not a whole number of row tiles


def _first_rows(x: QuantActivation, count: int) -> QuantActivation:
    planes = (x.values, x.scales, x.sums, x.plain, x.square_sums)
    return QuantActivation(*(plane[:count].contiguous() for plane in planes))


def _cols(kind: QuantFormat) -> int:
    """An odd number of groups of 128 where the format has it."""
    return 1536 if kind in (QuantFormat.Q4_K, QuantFormat.Q5_K, QuantFormat.Q6_K, QuantFormat.IQ4_XS) else 1664


@pytest.mark.parametrize("num_rows", [ROWS, 40])  # more and fewer than a program makes
@pytest.mark.parametrize("has_wgmma", [True, False])
@pytest.mark.parametrize("kind", FORMATS)
def test_products_of_any_number_of_rows(
    kind: QuantFormat, has_wgmma: bool, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_wgmma and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no wgmma on this card")
    monkeypatch.setattr(module, "has_wgmma", lambda x: has_wgmma)
    torch.backends.cuda.matmul.allow_tf32 = False
    cols = _cols(kind)
    weight = random_weight(num_rows, cols, kind, "cuda", seed=3)
    x = random_activation(128, cols, "cuda")
    expected = dequantize_rows(x) * rms_factor(x, EPS) @ dequantize(weight).T
    first = None
    for num_tokens in (16, 32, 64, 128) if num_rows == ROWS else (16, 64):
        packed = pack_halves(_first_rows(x, num_tokens), cols, EPS)
        assert relative_error(packed.float(), reference_pack(_first_rows(x, num_tokens), cols, EPS).float()) < 1e-3
        parts = torch.full((3, num_tokens, num_rows), torch.nan, device="cuda")
        many_rows(packed, weight, parts)
        assert relative_error(parts.sum(0), expected[:num_tokens]) < 1e-3
        first = parts[:, :16].clone() if first is None else first
        assert torch.equal(parts[:, :16], first)


@pytest.mark.parametrize("kind", [QuantFormat.Q4_K, QuantFormat.Q6_K, QuantFormat.Q8_0, QuantFormat.Q5_1])
def test_rows_much_smaller_than_others(kind: QuantFormat) -> None:
    """Each has a power of two of its own that its scales are multiplied by."""
    torch.backends.cuda.matmul.allow_tf32 = False
    large = random_weight(64, 1024, kind, "cuda", seed=3)
    planes = [large.quants, large.high, large.scales, large.supers]
    halves = planes[3 if kind in (QuantFormat.Q4_K, QuantFormat.Q6_K) else 2].view(torch.float16)
    halves[1::2] *= 2.0**-10
    weight = QuantWeight(kind, 64, 1024, *planes, scale_powers(kind, planes[2], planes[3]))
    x = torch.randn(64, 1024, device="cuda")
    parts = torch.full((1, 64, 64), torch.nan, device="cuda")
    many_rows(pack_rows(x), weight, parts)
    expected = x @ dequantize(weight).T
    assert relative_error(parts[0, :, ::2], expected[:, ::2]) < 1e-3
    assert relative_error(parts[0, :, 1::2], expected[:, 1::2]) < 1e-3

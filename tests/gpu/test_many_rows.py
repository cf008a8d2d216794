"""The Gluon product on the card: values, parts, and the same bits for a row whatever its number."""

from __future__ import annotations

import pytest
import torch

from kernels import many_rows as module
from kernels.many_rows import FORMATS, many_rows
from kernels.pack_halves import pack_halves
from kernels.quant_format import QuantActivation, QuantFormat
from kernels.reference.pack_halves import pack_halves as reference_pack
from kernels.reference.quant_gemv import dequantize_rows, rms_factor
from kernels.reference.quant_weight import dequantize
from tests.kernels.activations import random_activation, relative_error
from tests.kernels.random_weights import random_weight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
EPS = 1e-6
COLS, ROWS = 1536, 200  # not a whole number of row tiles


def _first_rows(x: QuantActivation, count: int) -> QuantActivation:
    planes = (x.values, x.scales, x.sums, x.plain, x.square_sums)
    return QuantActivation(*(plane[:count].contiguous() for plane in planes))


@pytest.mark.parametrize("has_wgmma", [True, False])
@pytest.mark.parametrize("kind", FORMATS)
def test_products_of_any_number_of_rows(
    kind: QuantFormat, has_wgmma: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_wgmma and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no wgmma on this card")
    monkeypatch.setattr(module, "has_wgmma", lambda x: has_wgmma)
    torch.backends.cuda.matmul.allow_tf32 = False
    weight = random_weight(ROWS, COLS, kind, "cuda", seed=3)
    x = random_activation(64, COLS, "cuda")
    expected = dequantize_rows(x) * rms_factor(x, EPS) @ dequantize(weight).T
    first = None
    for num_tokens in (16, 32, 64):
        packed = pack_halves(_first_rows(x, num_tokens), COLS, EPS)
        assert relative_error(packed.float(), reference_pack(_first_rows(x, num_tokens), COLS, EPS).float()) < 1e-3
        parts = torch.full((3, num_tokens, ROWS), torch.nan, device="cuda")
        many_rows(packed, weight, parts)
        assert relative_error(parts.sum(0), expected[:num_tokens]) < 1e-3
        first = parts[:, :16].clone() if first is None else first
        assert torch.equal(parts[:, :16], first)
    monkeypatch.setattr(module, "_plan", lambda *sizes: (3, True))  # few registers, two stages
    many_rows(packed, weight, parts.fill_(torch.nan))
    assert torch.equal(parts[:, :16], first)

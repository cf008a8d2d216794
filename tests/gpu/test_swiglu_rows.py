"""The Gluon product of gate and up on the card: values, cut tiles, and the same bits for a row whatever its number."""

from __future__ import annotations

import pytest
import torch

from kernels import swiglu_rows as module
from kernels.many_rows import FORMATS, num_splits
from kernels.normed_rows import NormedRows
from kernels.pack_halves import pack_rows
from kernels.projections import normed_parts
from kernels.quant_format import QuantFormat
from kernels.reference.pack_halves import fragment_order
from kernels.reference.quant_weight import dequantize
from kernels.split_sums import add_parts_swiglu_packed
from kernels.swiglu_rows import WIDTH, swiglu_rows, tile_counts
from tests.kernels.activations import relative_error
from tests.kernels.random_weights import random_weight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
FACTOR = 2.0**-4
FFN = 640


def _expected(plain: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    h = torch.nn.functional.silu(plain @ gate.T) * (plain @ up.T) * FACTOR
    return h[:, fragment_order(gate.shape[0]).to(h.device)]


def _cut_everywhere(monkeypatch: pytest.MonkeyPatch, whole: int, num_parts: int) -> None:
    monkeypatch.setattr(module, "cut", lambda *shape: (whole, num_parts))


@pytest.mark.parametrize("has_wgmma", [True, False])
@pytest.mark.parametrize("kind", FORMATS)
def test_products_of_any_number_of_rows(
    kind: QuantFormat, has_wgmma: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_wgmma and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no wgmma on this card")
    monkeypatch.setattr(module, "has_wgmma", lambda x: has_wgmma)
    torch.backends.cuda.matmul.allow_tf32 = False
    cols = 1536 if kind in (QuantFormat.Q4_K, QuantFormat.Q5_K, QuantFormat.Q6_K, QuantFormat.IQ4_XS) else 1664
    gate, up = (random_weight(FFN, cols, kind, "cuda", seed=seed) for seed in (3, 4))
    plain = torch.randn(128, cols, device="cuda") * 0.5
    expected = _expected(plain, dequantize(gate), dequantize(up))
    counts = tile_counts(FFN, plain.device)
    for whole, num_parts in ((FFN // WIDTH, 1), (7, 3), (0, 2)):
        _cut_everywhere(monkeypatch, whole, num_parts)
        first = None
        for num_tokens in (16, 32, 64, 128):
            h = swiglu_rows(pack_rows(plain[:num_tokens]), gate, up, FACTOR, counts)
            assert relative_error(h.float(), expected[:num_tokens]) < 2e-3
            first = h[:16] if first is None else first
            assert torch.equal(h[:16], first)
            assert not counts.any()


def test_two_matrices_in_one_launch_or_in_two() -> None:
    """A shape with tiles beyond a full round; sums differ in their order alone, and repeat."""
    gate, up = (random_weight(17408, 5120, QuantFormat.Q4_K, "cuda", seed=seed) for seed in (1, 2))
    plain = torch.randn(64, 5120, device="cuda")
    x = NormedRows(pack_rows(plain), plain)
    counts = tile_counts(17408, plain.device)
    found = swiglu_rows(x.packed, gate, up, FACTOR, counts)
    apart = add_parts_swiglu_packed(normed_parts(x, gate, False), normed_parts(x, up, False), FACTOR)
    assert num_splits(gate, 64) > 1
    assert relative_error(found.float(), apart.float()) < 5e-4
    for _ in range(20):
        assert torch.equal(swiglu_rows(x.packed, gate, up, FACTOR, counts, pdl=True), found)
    assert not counts.any()

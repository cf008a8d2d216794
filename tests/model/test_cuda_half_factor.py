"""The factor that keeps a feed-forward part's middle within f16: always enough, and no more than the bound asks for."""

from __future__ import annotations

import pytest
import torch

from kernels.quant_format import QuantFormat
from kernels.reference.quant_weight import dequantize
from kernels.repack import concat_rows
from sparkinfer.model.cuda import half_factor as module
from sparkinfer.model.cuda.half_factor import half_factor
from tests.kernels.random_weights import random_weight

F16_MAX = 65504.0


def _middle(gate: torch.Tensor, up: torch.Tensor, norm: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = norm * y * torch.rsqrt(y.square().mean(-1, keepdim=True))
    return torch.nn.functional.silu(x @ gate.T) * (x @ up.T)


def test_the_worst_input_of_the_worst_row_stays_within_f16() -> None:
    torch.manual_seed(1)
    gate, up = (random_weight(96, 512, QuantFormat.Q4_K, seed=seed) for seed in (1, 2))
    norm = torch.rand(512) * 10
    factor = half_factor(gate, up, norm)
    g, u = dequantize(gate), dequantize(up)
    directions = torch.cat([(g + u) * norm, g * norm, torch.randn(50, 512)])  # rows that meet themselves, and any
    largest = _middle(g, u, norm, directions).abs().max()
    assert largest * factor < F16_MAX
    assert largest > F16_MAX  # else nothing was shown
    assert largest * factor * 16 > F16_MAX  # a bound near what happens


def test_small_matrices_need_no_factor() -> None:
    gate = up = random_weight(32, 256, QuantFormat.Q8_0)
    assert half_factor(gate, up, torch.full((256,), 1e-3)) == 1.0
    assert half_factor(gate, up, torch.zeros(256)) == 1.0


def test_every_piece_of_rows_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (random_weight(rows, 256, QuantFormat.F32) for rows in (64, 8))
    large.quants[3] *= 1000.0
    gate = up = concat_rows([small, large])
    norm = torch.ones(256)
    whole = half_factor(gate, up, norm)
    assert whole < half_factor(small, small, norm)
    monkeypatch.setattr(module, "ROWS", 16)
    assert half_factor(gate, up, norm) == whole

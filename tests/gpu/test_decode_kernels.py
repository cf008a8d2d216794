"""Decode steps of full-width layers on the card, through a CUDA graph, against the float32 composition; and every
quantised format at widths of real models. The interpreter's tests cover the arithmetic; these cover what only a card
has: dp4a, tensor cores, early launch, graphs."""

from __future__ import annotations

import pytest
import torch

from kernels.quant_format import QuantFormat
from kernels.quant_gemv import quant_gemv
from kernels.reference import quant_gemv as reference
from ops.bench.gpu_decode import check
from tests.kernels.activations import random_activation, relative_error
from tests.kernels.random_weights import random_weight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(600),  # the first run compiles every kernel
]


def is_sm90() -> bool:
    return torch.cuda.get_device_capability() >= (9, 0)


@pytest.mark.parametrize("num_seqs", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ["35B-A3B", "27B", "30B-A3B"])
def test_a_step_of_full_width_layers(name: str, num_seqs: int) -> None:
    line = check(name, num_seqs, is_sm90())
    assert line.endswith("ok"), line


@pytest.mark.parametrize("num_seqs", [32, 64])
@pytest.mark.parametrize("name", ["35B-A3B", "27B", "30B-A3B"])
def test_a_wide_step_of_full_width_layers(name: str, num_seqs: int) -> None:
    """Rows whose choice of experts a rounding decides among them: tests/kernels/step_agreement.py."""
    line = check(name, num_seqs, is_sm90(), num_layers=2)
    assert line.endswith("ok"), line


@pytest.mark.parametrize("num_tokens", [1, 3, 8])
@pytest.mark.parametrize("num_cols", [768, 5120])
@pytest.mark.parametrize("kind", list(QuantFormat))
def test_formats_at_real_widths(kind: QuantFormat, num_cols: int, num_tokens: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    x = random_activation(num_tokens, num_cols, "cuda")
    weight = random_weight(77, num_cols, kind, "cuda", seed=3)  # no multiple of any tile
    out = torch.full((num_tokens, 77), torch.nan, device="cuda")
    quant_gemv(x, [weight], 1e-6, out=out)
    allowed = 1e-5 if num_tokens <= 4 or kind.is_float else 1e-3  # more rows: operands are f16 numbers
    assert relative_error(out, reference.quant_gemv(x, [weight], 1e-6)) < allowed

"""The Gluon products of experts on the card: values, unread rows, and the same bits whoever shares a run."""

from __future__ import annotations

import pytest
import torch

from kernels import expert_rows as module
from kernels.expert_rows import FORMATS
from kernels.pack_halves import pack_rows
from kernels.quant_format import QuantFormat, QuantWeight
from kernels.reference.grouped_experts import grouped_experts
from kernels.sort_tokens import Runs, sort_tokens
from sparkinfer.model.cuda import experts
from sparkinfer.model.cuda.weights import ExpertFFN
from tests.kernels import emulated
from tests.kernels.activations import relative_error
from tests.kernels.random_weights import random_weight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
EXPERTS, TOP_K, FFN, HIDDEN = 12, 4, 256, 512


def _products(
    x: torch.Tensor, ids: torch.Tensor, matrices: tuple[QuantWeight, QuantWeight, QuantWeight], length: int,
    is_emulated: bool = False,
) -> torch.Tensor:
    runs = Runs.empty(ids.numel(), EXPERTS, length, x.device)
    sort_tokens(ids, EXPERTS, runs)
    gate, up, down = matrices
    h = torch.full((ids.numel(), FFN), torch.nan, dtype=torch.float16, device=x.device)
    out = torch.full((ids.numel(), HIDDEN), torch.nan, device=x.device)
    owner = emulated if is_emulated else module
    owner.expert_gate_up(pack_rows(x), gate, up, runs, TOP_K, EXPERTS, h)
    owner.expert_down(h, down, runs, TOP_K, EXPERTS, out)
    return out


@pytest.mark.parametrize("has_wgmma", [True, False])
@pytest.mark.parametrize("kind", FORMATS)
def test_products_of_any_run_length(kind: QuantFormat, has_wgmma: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_wgmma and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no wgmma on this card")
    monkeypatch.setattr(module, "has_wgmma", lambda x: has_wgmma)
    torch.backends.cuda.matmul.allow_tf32 = False
    shapes = ((EXPERTS * FFN, HIDDEN), (EXPERTS * FFN, HIDDEN), (EXPERTS * HIDDEN, FFN))
    gate, up, down = (random_weight(*shape, kind, "cuda", seed=seed) for seed, shape in enumerate(shapes))
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(150, HIDDEN, generator=generator, device="cuda") * 0.1
    ids = torch.rand(150, EXPERTS - 1, generator=generator, device="cuda").argsort(-1)[:, :TOP_K].int()  # one idle
    expected = _products(x, ids, (gate, up, down), 64, is_emulated=True)
    found = {length: _products(x, ids, (gate, up, down), length) for length in (8, 16, 32, 64, 128)}
    for length, out in found.items():
        assert relative_error(out, expected) < 1e-3, length
        assert length == 8 or torch.equal(out, found[16]), length  # runs of eight have a loop of their own
        alone = _products(x[:3], ids[:3], (gate, up, down), length)
        assert torch.equal(alone, out[: 3 * TOP_K]), length


@pytest.mark.parametrize("width", [128, FFN])
@pytest.mark.parametrize("num_tokens", [1, 17, 700])
def test_a_prompts_experts(num_tokens: int, width: int) -> None:
    """Also of experts as narrow as one group of columns."""
    torch.backends.cuda.matmul.allow_tf32 = False
    gate, up = (random_weight(EXPERTS * width, HIDDEN, QuantFormat.Q4_K, "cuda", seed=seed) for seed in (1, 2))
    down = random_weight(EXPERTS * HIDDEN, width, QuantFormat.Q8_0 if width < FFN else QuantFormat.Q5_K, "cuda", seed=3)
    ffn = ExpertFFN(random_weight(EXPERTS, HIDDEN, QuantFormat.F32, "cuda"), gate, up, down, None, TOP_K, 0.25)
    x, logits = torch.randn(num_tokens, HIDDEN, device="cuda") * 0.01, torch.randn(num_tokens, EXPERTS, device="cuda")
    out, weights = experts.grouped_experts(x, logits, ffn)
    ids, _ = experts.choose(logits[None], ffn)
    assert torch.equal(ids.long(), logits.topk(TOP_K, dim=-1)[1])
    assert relative_error(out, grouped_experts(x, ids, weights, gate, up, down)) < 2e-3

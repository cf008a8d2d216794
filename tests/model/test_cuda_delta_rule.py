"""The delta rule by chunks through its two kernels equals the rule token by token, on keys that resemble one another
too."""

from __future__ import annotations

import pytest
import torch

from kernels.reference.gated_delta_rule import l2_normalize, recurrent_gated_delta_rule
from kernels.unit_lower_inverse import SIZE, unit_lower_inverse
from sparkinfer.model.cuda.chunked_delta_rule import chunked_delta_rule, plain_delta_rule

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # the interpreter's bounds
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("rule", [chunked_delta_rule, plain_delta_rule])
@pytest.mark.parametrize("num_tokens", [1, 2, 63, 64, 65, 150])
@pytest.mark.parametrize("likeness", [0.0, 5.0])
def test_equals_the_rule_token_by_token(rule, num_tokens: int, likeness: float) -> None:  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(num_tokens)
    heads, d = 3, 16

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    k = l2_normalize(random(num_tokens, heads, d) + likeness * random(1, heads, d))
    q, v = l2_normalize(random(num_tokens, heads, d)) * d**-0.5, random(num_tokens, heads, d)
    g, beta = -0.02 * torch.rand(num_tokens, heads, generator=generator), torch.sigmoid(3 + random(num_tokens, heads))
    inputs = [x.to(DEVICE) for x in (q, k, v, g, beta, random(heads, d, d))]
    expected, expected_state = recurrent_gated_delta_rule(*(x[None] for x in inputs))
    out = rule(*inputs)
    torch.testing.assert_close(out, expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(inputs[-1], expected_state[0], rtol=1e-4, atol=1e-4)


def test_inverse_of_the_hardest_triangle_is_exact() -> None:
    """All ones below the diagonal: powers of it overflow what their sum cancels."""
    lower = torch.ones(2, SIZE, SIZE, device=DEVICE).tril(-1)
    product = unit_lower_inverse(lower) @ (lower + torch.eye(SIZE, device=DEVICE))
    torch.testing.assert_close(product, torch.eye(SIZE, device=DEVICE).expand(2, -1, -1), rtol=0, atol=1e-6)

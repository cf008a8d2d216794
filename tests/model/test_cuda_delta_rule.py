"""The delta rule by chunks without a solver equals the rule token by token, on keys that resemble one another too."""

from __future__ import annotations

import pytest
import torch

from kernels.reference.gated_delta_rule import l2_normalize, recurrent_gated_delta_rule
from sparkinfer.model.cuda.chunked_delta_rule import CHUNK, chunked_delta_rule, unit_lower_inverse


@pytest.mark.parametrize("num_tokens", [1, 2, 63, 64, 65, 150])
@pytest.mark.parametrize("likeness", [0.0, 5.0])
def test_equals_the_rule_token_by_token(num_tokens: int, likeness: float) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    heads, d_k, d_v = 3, 16, 8

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    k = l2_normalize(random(num_tokens, heads, d_k) + likeness * random(1, heads, d_k))
    q, v = l2_normalize(random(num_tokens, heads, d_k)) * d_k**-0.5, random(num_tokens, heads, d_v)
    g, beta = -0.02 * torch.rand(num_tokens, heads, generator=generator), torch.sigmoid(3 + random(num_tokens, heads))
    state = random(heads, d_k, d_v)
    expected, expected_state = recurrent_gated_delta_rule(*(x[None] for x in (q, k, v, g, beta, state)))
    out, new_state = chunked_delta_rule(q, k, v, g, beta, state)
    torch.testing.assert_close(out, expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(new_state, expected_state[0], rtol=1e-4, atol=1e-4)


def test_inverse_of_the_hardest_triangle_is_exact() -> None:
    """All ones below the diagonal: powers of it overflow what their sum cancels."""
    lower = torch.ones(2, CHUNK, CHUNK).tril(-1)
    product = unit_lower_inverse(lower) @ (lower + torch.eye(CHUNK))
    torch.testing.assert_close(product, torch.eye(CHUNK).expand(2, -1, -1), rtol=0, atol=1e-6)

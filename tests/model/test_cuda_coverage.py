"""Which checkpoints the kernels take, and the one reordering that loading does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.reference.rope import rope_angles, rope_halves, rope_interleaved
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.cuda.coverage import why_not_covered
from sparkinfer.model.cuda.rotation import half_order
from tests.model.tiny import tiny_gguf


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("gemma3", None), ("muse-glimmer", None),
        ("llama", None), ("qwen2", None), ("qwen3", None), ("qwen3moe", None), ("qwen35", None), ("qwen35moe", None),
    ],
)
def test_reason_is_named(architecture: str, reason: str | None, tmp_path: Path) -> None:
    gguf = GGUFFile.open(tiny_gguf(architecture, tmp_path))
    assert why_not_covered(gguf, HParams.from_gguf(gguf)) == reason


def test_halves_of_reordered_rows_are_neighbours_of_the_files() -> None:
    """Scores of rotated queries and keys stay the same, a part of the head unrotated."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 5, 3, 16).unbind(0)  # [num_tokens, heads, head_dim]
    angles = rope_angles(torch.arange(5) * 7, torch.tensor([1.0, 0.1, 0.01, 0.3, 0.7, 0.2]))
    cos, sin = angles.cos(), angles.sin()
    expected = torch.einsum("ihd,jhd->hij", rope_interleaved(q, cos, sin), rope_interleaved(k, cos, sin))
    order = half_order(3, 16, 12)
    q, k = (x.flatten(1)[:, order].view(5, 3, 16) for x in (q, k))
    actual = torch.einsum("ihd,jhd->hij", rope_halves(q, cos, sin), rope_halves(k, cos, sin))
    torch.testing.assert_close(actual, expected)

"""`qwen3`: attention with a norm on every query and key head, SwiGLU, rotary halves."""

from __future__ import annotations

from sparkinfer.model.attention import AttentionVariant
from sparkinfer.model.dense import DenseTransformer


class Qwen3(DenseTransformer):
    """Attention with head norms and SwiGLU."""

    variant = AttentionVariant(has_qk_norm=True)

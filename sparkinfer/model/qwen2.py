"""`qwen2`: llama with biases on the query, key and value projections and rotary halves."""

from __future__ import annotations

from sparkinfer.model.attention import AttentionVariant
from sparkinfer.model.dense import DenseTransformer


class Qwen2(DenseTransformer):
    """Attention with biases and SwiGLU."""

    variant = AttentionVariant(has_bias=True)

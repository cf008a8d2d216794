"""RopeParams: how a model rotates queries and keys.

Knows the metadata keys; the rotation itself is the model's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparkinfer.checkpoint.metadata import MetadataReader

ScalingType = Literal["none", "linear", "yarn"]

INTERLEAVED_ARCHITECTURES = ("llama", "muse-glimmer")
DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParams:
    """Rotary embedding of one model: angle of pair j at position p is p * theta^(-2j / dim), then scaled."""

    dim: int                    # elements of each head that rotate, the first ones; even
    is_interleaved: bool        # pairs are (2j, 2j+1); otherwise (j, j + dim/2)
    theta: float
    sliding_theta: float        # of sliding-window layers; the same as theta except in gemma3
    sections: tuple[int, ...]   # pairs per position axis of multimodal rope; (): one axis

    scaling_type: ScalingType   # applies to full-attention layers only where sliding_theta differs
    scaling_factor: float       # 1.0 without scaling
    original_context: int       # tokens of context before scaling
    yarn_attn_factor: float     # yarn: extra factor of cos and sin
    yarn_beta_fast: float
    yarn_beta_slow: float

    @classmethod
    def from_metadata(cls, reader: MetadataReader, architecture: str, head_dim: int) -> RopeParams:
        """Raises CheckpointError naming the key; `rope_freqs.weight`, if the file has it, is the model's business."""
        prefix = f"{architecture}.rope"
        dim = reader.integer(f"{prefix}.dimension_count", head_dim, low=2, high=head_dim)
        if dim % 2:
            reader.fail(f"{prefix}.dimension_count", "even")
        theta = reader.number(f"{prefix}.freq_base", DEFAULT_THETA, low=1.0)
        sliding_default = DEFAULT_THETA if architecture == "gemma3" else theta
        scaling_type, scaling_factor = _scaling(reader, prefix)
        return cls(
            dim=dim,
            is_interleaved=architecture in INTERLEAVED_ARCHITECTURES,
            theta=theta,
            sliding_theta=reader.number(f"{prefix}.freq_base_swa", sliding_default, low=1.0),
            sections=_sections(reader, prefix, dim),
            scaling_type=scaling_type,
            scaling_factor=scaling_factor,
            original_context=reader.integer(
                f"{prefix}.scaling.original_context_length",
                reader.integer(f"{architecture}.context_length", low=1),
                low=1,
            ),
            yarn_attn_factor=_first_number(reader, prefix, "attn_factor", 1.0),
            yarn_beta_fast=_first_number(reader, prefix, "beta_fast", 32.0),
            yarn_beta_slow=_first_number(reader, prefix, "beta_slow", 1.0),
        )


def _scaling(reader: MetadataReader, prefix: str) -> tuple[ScalingType, float]:
    factor = reader.number(f"{prefix}.scaling.factor", reader.number(f"{prefix}.scale_linear", 0.0, low=0.0), low=0.0)
    kind = reader.text(f"{prefix}.scaling.type", "linear" if factor else "none")
    if kind not in ("none", "linear", "yarn"):
        reader.fail(f"{prefix}.scaling.type", "'none', 'linear' or 'yarn'")
    if kind == "none" or factor in (0.0, 1.0):
        return "none", 1.0
    return "yarn" if kind == "yarn" else "linear", factor


def _sections(reader: MetadataReader, prefix: str, dim: int) -> tuple[int, ...]:
    key = f"{prefix}.dimension_sections"
    sections = reader.integers(key, ())
    if sections and (min(sections) < 0 or sum(sections) != dim // 2 or len(sections) > 4):
        reader.fail(key, f"up to 4 counts that add up to {dim // 2}, half of rope.dimension_count")
    return sections


def _first_number(reader: MetadataReader, prefix: str, name: str, default: float) -> float:
    """Converters have written the yarn constants with and without `yarn_` in the key."""
    return reader.number(
        f"{prefix}.scaling.yarn_{name}", reader.number(f"{prefix}.scaling.{name}", default, low=0.0), low=0.0
    )

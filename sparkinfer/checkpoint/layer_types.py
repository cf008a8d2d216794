"""Which kind each trunk layer is: full attention, sliding-window attention, or gated delta-net.

Knows the patterns that converters write; nothing of the layers' tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from sparkinfer.checkpoint.metadata import MetadataReader

LayerType = Literal["attention", "sliding_attention", "gated_delta_net"]
ATTENTION: LayerType = "attention"

# Architectures whose layers alternate, and the period that a file may leave out.
HYBRID_PERIODS = {"qwen35": 4, "qwen35moe": 4}
SLIDING_PERIODS = {"gemma3": 6, "muse-glimmer": 4}


def layer_types(reader: MetadataReader, architecture: str, num_layers: int) -> tuple[LayerType, ...]:
    """The type of each of the `num_layers` trunk layers; raises CheckpointError for a pattern that is no pattern."""
    if architecture in HYBRID_PERIODS:
        return _hybrid(reader, architecture, num_layers)
    if architecture in SLIDING_PERIODS and reader.integer(f"{architecture}.attention.sliding_window", 0):
        return _sliding(reader, architecture, num_layers)
    return (ATTENTION,) * num_layers


def _hybrid(reader: MetadataReader, architecture: str, num_layers: int) -> tuple[LayerType, ...]:
    """A flag per layer where the file has them (true: recurrent), else every n-th layer is attention."""
    key = f"{architecture}.attention.recurrent_layers"
    if key in reader:
        return _where(reader.flags(key, num_layers)[:num_layers], "gated_delta_net")
    period = reader.integer(f"{architecture}.full_attention_interval", HYBRID_PERIODS[architecture], low=1)
    return _where(_all_but_every(period, num_layers), "gated_delta_net")


def _sliding(reader: MetadataReader, architecture: str, num_layers: int) -> tuple[LayerType, ...]:
    """A flag per layer (true: sliding), or a period n: every n-th layer is global."""
    key = f"{architecture}.attention.sliding_window_pattern"
    if isinstance(reader.metadata.get(key), list):
        return _where(reader.flags(key, num_layers)[:num_layers], "sliding_attention")
    period = reader.integer(key, SLIDING_PERIODS[architecture], low=1)
    return _where(_all_but_every(period, num_layers), "sliding_attention")


def _all_but_every(period: int, num_layers: int) -> list[bool]:
    """False for layers period-1, 2*period-1, ..."""
    return [(layer + 1) % period != 0 for layer in range(num_layers)]


def _where(flags: Iterable[bool], kind: LayerType) -> tuple[LayerType, ...]:
    return tuple(kind if flag else ATTENTION for flag in flags)

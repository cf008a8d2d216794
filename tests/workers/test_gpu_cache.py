"""The prefix that is kept for good, and what fits beside it."""

from __future__ import annotations

import dataclasses

import pytest

from sparkinfer.config import Config, EngineConfig, ModelConfig, PrefixCacheConfig
from sparkinfer.engine.memory_plan import MemoryPlan
from sparkinfer.errors import ConfigError
from workers.gpu_cache import beside_pinned, pinned_tokens

BLOCK_SIZE = 16


def config(max_model_len: int = 0, pinned: tuple[str, ...] = (), enabled: bool = True) -> Config:
    return Config(
        model=ModelConfig(max_model_len=max_model_len),
        engine=EngineConfig(block_size=BLOCK_SIZE),
        prefix_cache=PrefixCacheConfig(pinned_tokens=pinned, enabled=enabled),
    )


@pytest.mark.parametrize(
    ("num_blocks", "max_model_len", "num_pinned", "longest"),
    [
        (100, 400, 0, 400),
        (100, 400, 398, 400),                # a prefix, a token behind it, a token of output
        (25, 400, 0, 400),
        (25, 400, 100, 19 * BLOCK_SIZE),     # six whole blocks are taken for good
        (25, 400, 15, 400),                  # not one
    ],
)
def test_the_longest_sequence_fits_beside_the_pinned_prefix(num_blocks, max_model_len, num_pinned, longest):
    plan = MemoryPlan(num_blocks, max_model_len, 1)
    assert beside_pinned(plan, num_pinned, config()) == dataclasses.replace(plan, max_model_len=longest)


@pytest.mark.parametrize(
    ("num_blocks", "num_pinned", "max_model_len", "words"),
    [
        (100, 399, 0, "399 are too many: sequences hold 400 tokens and the KV cache 1600"),
        (25, 300, 0, "300 are too many"),
        (25, 100, 400, "max_model_len = 400: 304 fit"),
    ],
)
def test_a_prefix_that_leaves_no_room_is_the_operators_error(num_blocks, num_pinned, max_model_len, words):
    with pytest.raises(ConfigError, match=words):
        beside_pinned(MemoryPlan(num_blocks, 400, 1), num_pinned, config(max_model_len))


def test_pinned_tokens_are_the_models_and_need_the_cache():
    assert pinned_tokens(config(pinned=("1", "9")), vocab_size=10) == [1, 9]
    assert pinned_tokens(config(pinned=("1", "9"), enabled=False), vocab_size=10) == []
    with pytest.raises(ConfigError, match="pinned_tokens: token id 10: allowed: 0 to 9"):
        pinned_tokens(config(pinned=("1", "10")), vocab_size=10)

"""Where a prompt's recurrent state is worth keeping. Knows positions; never tokens or memory."""

from __future__ import annotations

from collections.abc import Sequence

from sparkinfer.config import PrefixCacheConfig

# Tokens. A checkpoint cuts a prefill chunk, and a chunk of fewer tokens costs a step nearly as much.
MIN_GAP_TOKENS = 64


def plan_checkpoints(
    turn_starts: Sequence[int], num_tokens: int, start: int, config: PrefixCacheConfig, block_size: int
) -> list[int]:
    """Positions in (start, num_tokens) to save the state at, block boundaries all of them, nearest last.

    The last turn's start and the end of the prompt are always among them: the conversation's next request departs
    from one of the two. Other turns and every checkpoint_tokens serve edited histories and shared beginnings; they
    keep MIN_GAP_TOKENS between each other.

    >>> plan_checkpoints([0, 100, 130, 300], 330, 0, PrefixCacheConfig(min_tokens=64, checkpoint_tokens=128), 16)
    [320, 288, 256, 96]
    """
    last = (num_tokens - 1) // block_size * block_size
    turns = sorted({position // block_size * block_size for position in turn_starts if position < num_tokens})
    wanted = {last, *turns[-1:]}
    step = -(-config.checkpoint_tokens // block_size) * block_size
    regular = range(step, last, step) if step else range(0)
    previous = start
    for position in sorted({*turns, *regular}):
        if position - previous >= MIN_GAP_TOKENS:
            wanted.add(position)
            previous = position
    lowest = max(start, config.min_tokens - 1)
    return sorted((position for position in wanted if lowest < position <= last), reverse=True)

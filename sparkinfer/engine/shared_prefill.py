"""Which waiting sequence should let a running one compute what both begin with. Knows tokens; never blocks."""

from __future__ import annotations

from dataclasses import dataclass

from sparkinfer.engine.sequence import Sequence

# Tokens. To wait costs a step at least; choices of one request wait for a single block.
MIN_SHARED_TOKENS = 64


@dataclass(slots=True, eq=False)
class _Leader:
    data: bytes                # its tokens, int32
    checkpoints: list[int]     # positions it can be resumed from once it has passed them; of recurrent models only
    num_inserted: int = 0      # tokens that the cache has of it


class SharedPrefill:
    """Sequences in prefill, for those behind them in the queue to wait for.

    A sequence waits for one that is served before it anyway, so that nobody's end is put off by it.
    """

    def __init__(self, block_size: int, has_state: bool) -> None:
        self._block_size = block_size
        self._has_state = has_state
        self._leaders: dict[Sequence, _Leader] = {}

    def __bool__(self) -> bool:
        return bool(self._leaders)

    def add(self, sequence: Sequence, data: bytes, checkpoints: list[int]) -> None:
        """A sequence starts its prefill."""
        self._leaders[sequence] = _Leader(data, list(checkpoints))

    def advance(self, sequence: Sequence) -> None:
        """Some of the prefill is scheduled, all of it maybe."""
        if sequence.num_computed_tokens >= sequence.num_prefill_tokens:
            self._leaders.pop(sequence, None)
        elif sequence in self._leaders:
            self._leaders[sequence].num_inserted = sequence.num_computed_tokens

    def discard(self, sequence: Sequence) -> None:
        """The sequence does not run any more."""
        self._leaders.pop(sequence, None)

    def is_waiting(self, sequence: Sequence) -> bool:
        """Whether what `must_wait` found is still being computed."""
        if sequence.waits_for is None:
            return False
        leader, position = sequence.waits_for
        state = self._leaders.get(leader)
        # NOTE: a state is saved by the step that goes on from its position, and can be restored by that same step.
        if state is not None and (
            leader.num_computed_tokens <= position if self._has_state else state.num_inserted < position
        ):
            return True
        sequence.waits_for = None
        return False

    def must_wait(self, sequence: Sequence, data: bytes, num_cached_tokens: int) -> bool:
        """Whether a running sequence will soon have computed more of these tokens than the cache has now.

        data: all tokens of the sequence, int32.
        """
        best = num_cached_tokens
        for leader, state in self._leaders.items():
            if leader.order > sequence.order:
                continue
            begin = 4 * num_cached_tokens
            if state.data[begin : begin + 4] != data[begin : begin + 4]:
                continue
            shared = min(_common_prefix(state.data, data), len(data) - 4) // 4
            position = self._resumable(state, shared)
            gain = self._block_size if leader.request_id == sequence.request_id else MIN_SHARED_TOKENS
            if position >= max(best + 1, num_cached_tokens + gain):
                sequence.waits_for = (leader, position)
                best = position
        return best > num_cached_tokens

    def _resumable(self, state: _Leader, num_tokens: int) -> int:
        if not self._has_state:
            return num_tokens // self._block_size * self._block_size
        return max((position for position in state.checkpoints if position <= num_tokens), default=0)


def _common_prefix(a: bytes, b: bytes) -> int:
    """Length of the common prefix.

    >>> _common_prefix(b"abcdef", b"abcxef")
    3
    """
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low

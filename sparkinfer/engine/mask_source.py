"""Which tokens a grammar allows next, as bit masks that somebody else fills. Knows rows and positions; never grammars.

A mask is [ceil(vocab_size / 32)] int32 words; token t is allowed where bit t % 32 of word t // 32 is set. Bits at and
beyond vocab_size mean nothing. Imports neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

NO_MASK_ROW = -1
WORD_BITS = 32


class MaskSource(Protocol):
    """Read by the thread that samples, while others write rows that are not ready."""

    def ready(self, mask_row: int, position: int) -> Any | None:
        """The mask for the token at `position` of the sequence that owns `mask_row`, None while it is not there.

        returns numpy [num_words] int32, unchanged until that token has been published
        """

    def forced(self, mask_row: int, position: int) -> Sequence[int]:
        """The tokens from `position` on that leave no choice, as far as known; as long unchanged as the mask.

        The mask then allows the first of them alone.
        """


def allows(mask: Sequence[int], token_id: int) -> bool:
    """
    >>> allows([0b100, 0], 2), allows([0b100, 0], 3), allows([0, -(2**31)], 63)
    (True, False, True)
    """
    return bool(int(mask[token_id // WORD_BITS]) >> token_id % WORD_BITS & 1)


def lowest_allowed(mask: Sequence[int], vocab_size: int) -> int | None:
    """The first token that a mask allows.

    >>> lowest_allowed([0, 0b1000], 64), lowest_allowed([0, 0b1000], 35), lowest_allowed([-(2**31)], 32)
    (35, None, 31)
    """
    for number, word in enumerate(mask):
        if word:
            bits = int(word)
            token_id = number * WORD_BITS + (bits & -bits).bit_length() - 1
            return token_id if token_id < vocab_size else None
    return None

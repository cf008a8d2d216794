"""Logits that a bit mask rules out become -inf, in place: one launch, and only those are written.

Bytes moved: the masks, and the logits that they forbid.
Reference:   sparkinfer.engine.token_mask's torch operations
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
WORD_BITS = tl.constexpr(32)


@triton.jit(do_not_specialize=["num_cols", "num_words"])
def _mask_logits_kernel(x_ptr, rows_ptr, words_ptr, num_cols, num_words, BLOCK: tl.constexpr):
    number = tl.program_id(1).to(tl.int64)
    row = tl.load(rows_ptr + number).to(tl.int64)
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_column = offs < num_cols
    word = tl.load(words_ptr + number * num_words + offs // WORD_BITS, mask=is_column, other=-1)
    is_forbidden = ((word >> (offs % WORD_BITS)) & 1) == 0
    tl.store(x_ptr + row * num_cols + offs, tl.zeros_like(offs) - float("inf"), mask=is_column & is_forbidden)


def mask_logits(logits: Tensor, rows: Tensor, words: Tensor) -> None:
    """logits: [num_rows, num_cols] f32, changed; rows: [num_masks] int64; words: [num_masks, num_words] int32.

    Column c of logits[rows[i]] stays where bit c % 32 of words[i, c // 32] is set; num_words >= ceil(num_cols / 32).
    """
    num_masks, num_words = words.shape
    num_cols = logits.shape[1]
    grid = (triton.cdiv(num_cols, BLOCK), num_masks)
    _mask_logits_kernel[grid](logits, rows, words, num_cols, num_words, BLOCK=BLOCK)

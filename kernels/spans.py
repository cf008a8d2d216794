"""Chunks of several sequences laid end to end, as the kernels of a prompt find them on the device.

Knows rows, positions and slots; never tokens or layers. The tables may be longer than what is used of them, so that
their addresses and sizes stay the same from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

CHUNK = 64  # tokens of a sequence that the delta rule takes at once
TILE = 128  # tokens of a sequence whose queries share a program
SEQUENCE_FIELDS = 5


@dataclass(frozen=True, slots=True)
class Spans:
    """All int32 on the device.

    sequences:     [num_seqs, 5] first row of the step, tokens, position of the first token, slot, first of its chunks
    chunks:        [num_chunks, 2] sequence, first token of it (counted from the sequence's own first one) that belongs
                   to this run of CHUNK tokens; sequence -1: none
    tiles:         [num_tiles, 2] the same for runs of TILE tokens
    block_tables:  [num_slots, max_blocks] by slot
    """

    sequences: Tensor
    chunks: Tensor
    tiles: Tensor
    block_tables: Tensor


def pack_spans(
    parts: Sequence[tuple[int, int, int]], num_seqs: int, num_tokens: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """(sequences, chunks, tiles) of `parts`: (slot, start, tokens) of each, in the order of their rows.

    num_seqs, num_tokens: the most that the tables must have room for
    """
    sequences = np.zeros((num_seqs, SEQUENCE_FIELDS), np.int32)
    chunks = np.full((table_length(num_seqs, num_tokens, CHUNK), 2), -1, np.int32)
    tiles = np.full((table_length(num_seqs, num_tokens, TILE), 2), -1, np.int32)
    row = chunk = tile = 0
    for index, (slot, start, count) in enumerate(parts):
        sequences[index] = row, count, start, slot, chunk
        row += count
        chunk = _fill(chunks, chunk, index, count, CHUNK)
        tile = _fill(tiles, tile, index, count, TILE)
    return sequences, chunks, tiles


def table_length(num_seqs: int, num_tokens: int, size: int) -> int:
    """Runs of `size` tokens that num_tokens tokens of num_seqs sequences make at most."""
    return num_tokens // size + min(num_seqs, num_tokens)


def _fill(table: npt.NDArray[np.int32], place: int, index: int, count: int, size: int) -> int:
    firsts = np.arange(0, count, size, dtype=np.int32)
    table[place : place + len(firsts), 0] = index
    table[place : place + len(firsts), 1] = firsts
    return place + len(firsts)

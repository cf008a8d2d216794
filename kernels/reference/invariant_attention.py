"""paged_attention with a fixed order of additions: a query's bits depend on its own sequence and position alone.

Keys are cut into tiles of KEY_TILE at absolute positions of their sequence. Scores and sums of values are products of
one shape per tile, and tiles are added one after the other. A tile or key that a query does not see adds an exact
zero, so it makes no difference which others a group is padded to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.invariant_matmul import LARGEST_PIECE, InvariantMatmul
from kernels.reference.paged_attention import MAX_GROUPED_QUERY_LEN, gather_rows
from kernels.reference.store_kv import KVScales

KEY_TILE = 128  # keys


@dataclass(frozen=True, slots=True)
class TiledGroup:
    """Sequences of one step with the same number of new tokens and similar numbers of keys."""

    query_len: int
    num_seqs: int
    num_tiles: int
    query_rows: Tensor  # [num_seqs * query_len] int64, rows of the step
    key_slots: Tensor   # [num_seqs * num_tiles * KEY_TILE] int64, rows of the pool, padded with a valid row
    mask: Tensor        # [num_seqs, query_len, num_tiles * KEY_TILE] bool, what may be read


def tiled_attention_plan(
    block_tables: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_size: int,
    sliding_window: int | None = None,
) -> list[TiledGroup]:
    """Arguments as `attention_plan`."""
    row_starts = [0]
    members: dict[tuple[int, int], list[int]] = {}
    tiles: list[tuple[int, int]] = []  # of each sequence: the first that is read, and how many
    for seq, (query_len, context_len) in enumerate(zip(query_lens, context_lens, strict=True)):
        row_starts.append(row_starts[-1] + query_len)
        first_key = 0 if sliding_window is None else max(context_len - query_len - sliding_window + 1, 0)
        first_tile = first_key // KEY_TILE
        tiles.append((first_tile, -(-context_len // KEY_TILE) - first_tile))
        is_grouped = query_len <= MAX_GROUPED_QUERY_LEN
        members.setdefault((query_len, tiles[-1][1].bit_length() if is_grouped else -1 - seq), []).append(seq)
    device = block_tables.device
    groups = []
    for (query_len, _), seqs in members.items():
        num_tiles = max(tiles[seq][1] for seq in seqs)
        start = torch.tensor([tiles[seq][0] * KEY_TILE for seq in seqs], device=device)[:, None]
        end = torch.tensor([context_lens[seq] for seq in seqs], device=device)[:, None]
        first_rows = torch.tensor([row_starts[seq] for seq in seqs], device=device)
        key_positions = start + torch.arange(num_tiles * KEY_TILE, device=device)
        readable = torch.minimum(key_positions, end - 1)
        tables = block_tables[torch.tensor(seqs, device=device)]
        key_slots = tables.gather(1, readable // block_size).long() * block_size + readable % block_size
        offsets = torch.arange(query_len, device=device)
        distance = (end - query_len + offsets)[:, :, None] - key_positions[:, None, :]
        mask = distance >= 0 if sliding_window is None else (distance >= 0) & (distance < sliding_window)
        query_rows = (first_rows[:, None] + offsets).flatten()
        groups.append(TiledGroup(query_len, len(seqs), num_tiles, query_rows, key_slots.flatten(), mask))
    return groups


class TiledAttention:
    """`attend` over tiles; the products are `matmul`'s."""

    def __init__(self, matmul: InvariantMatmul) -> None:
        self._matmul = matmul

    def attend(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        plan: Sequence[TiledGroup],
        scale: float,
        kv_scales: KVScales | None = None,
    ) -> Tensor:
        """Arguments and result as paged_attention.attend."""
        out = torch.empty_like(q)
        for group in plan:
            shape = (group.num_seqs, group.num_tiles, KEY_TILE, *k_cache.shape[1:])
            keys = gather_rows(k_cache, kv_scales and kv_scales[0], group.key_slots, q.dtype).view(shape)
            values = gather_rows(v_cache, kv_scales and kv_scales[1], group.key_slots, q.dtype).view(shape)
            rows = q.index_select(0, group.query_rows).view(group.num_seqs, group.query_len, *q.shape[1:])
            attended = self._attend_group(rows * scale, _by_head(keys), _by_head(values), group.mask)
            out.index_copy_(0, group.query_rows, attended.flatten(0, 1))
        return out

    def _attend_group(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """q: [num_seqs, query_len, num_q_heads, head_dim] -> same; keys, values as _by_head; mask as TiledGroup's."""
        num_seqs, query_len, num_q_heads, head_dim = q.shape
        num_kv_heads = keys.shape[1]
        rows = q.view(num_seqs, query_len, num_kv_heads, -1, head_dim).transpose(1, 2).flatten(2, 3)
        group_size = num_q_heads // num_kv_heads
        row_mask = mask.repeat_interleave(group_size, dim=1)
        pieces = [
            self._attend_piece(rows[:, :, i : i + LARGEST_PIECE], keys, values, row_mask[:, i : i + LARGEST_PIECE])
            for i in range(0, query_len * group_size, LARGEST_PIECE)
        ]
        out = torch.cat(pieces, dim=2).unflatten(2, (query_len, group_size))
        return out.transpose(1, 2).reshape(q.shape)

    def _attend_piece(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """At most LARGEST_PIECE rows of each kv head.

        q:       [num_seqs, num_kv_heads, num_rows, head_dim]
        mask:    [num_seqs, num_rows, num_tiles * KEY_TILE]
        returns  as q
        """
        num_rows, head_dim = q.shape[2:]
        batch, num_tiles = q.shape[:2], keys.shape[2]
        num_padded = max(
            self._matmul.bmm_rows(num_rows, head_dim, KEY_TILE, True),
            self._matmul.bmm_rows(num_rows, KEY_TILE, head_dim, False),
        )
        q = F.pad(q, (0, 0, 0, num_padded - num_rows))
        mask = F.pad(mask, (0, 0, 0, num_padded - num_rows), value=True)
        mask = mask.unflatten(2, (num_tiles, KEY_TILE)).transpose(1, 2)[:, None]
        rows = q[:, :, None].expand(-1, -1, num_tiles, -1, -1).flatten(0, 2)
        scores = torch.bmm(rows, keys.flatten(0, 2).transpose(1, 2)).view(*batch, num_tiles, num_padded, KEY_TILE)
        scores = scores.masked_fill(~mask, float("-inf"))
        weights = torch.exp(scores - scores.amax(dim=(2, 4), keepdim=True))
        sums = torch.bmm(weights.flatten(0, 2), values.flatten(0, 2)).view(*batch, num_tiles, num_padded, head_dim)
        totals = weights.sum(-1, keepdim=True)
        out, total = torch.zeros_like(sums[:, :, 0]), torch.zeros_like(totals[:, :, 0])
        for tile in range(num_tiles):
            out, total = out + sums[:, :, tile], total + totals[:, :, tile]
        return (out / total)[:, :, :num_rows]


def _by_head(x: Tensor) -> Tensor:
    """[num_seqs, num_tiles, KEY_TILE, heads, head_dim] -> [num_seqs, heads, num_tiles, KEY_TILE, head_dim]; copied."""
    return x.permute(0, 3, 1, 2, 4).contiguous()

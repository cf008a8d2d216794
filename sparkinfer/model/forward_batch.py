"""The device tensors and host numbers of one step, as the model sees them.

Knows rows, blocks and slots; never requests, text or sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step: the tokens of all its sequences laid end to end (a chunk of prefill, or one decode token, each).

    Host lists repeat what the device tensors say so that no layer has to synchronise to learn a length.
    """

    input_ids: Tensor            # [num_tokens] int64
    positions: Tensor            # [num_tokens] int64, position of each token in its sequence
    cu_seqlens_q: Tensor         # [num_seqs + 1] int32, where each sequence's rows start
    context_lens: Tensor         # [num_seqs] int32, tokens present after this step (cached + new)
    slot_mapping: Tensor         # [num_tokens] int64, row of the KV pool that each token is written to
    block_tables: Tensor         # [num_seqs, max_blocks] int32, padded with 0
    state_slots: Tensor          # [num_seqs] int64, row of the state pool (hybrid models; else unused)
    logits_indices: Tensor       # [num_logits] int64, rows of the step whose logits are wanted
    query_lens: list[int]        # new tokens of each sequence
    context_lens_cpu: list[int]  # context_lens on the host; equal to query_lens where a sequence starts at 0

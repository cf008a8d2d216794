"""The frame of every architecture: embedding, blocks, final norm, output head.

Knows their order; an architecture's file supplies the blocks and what it does differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.state_pool import StatePool
from sparkinfer.model.block import Block
from sparkinfer.model.forward_batch import ForwardBatch
from sparkinfer.model.linear import Embedding, Linear
from sparkinfer.model.module import Module
from sparkinfer.model.norm import RMSNorm
from sparkinfer.model.rope import Rope
from sparkinfer.model.step import plan_step


class Transformer(Module):
    """A decoder: logits of chosen rows for one step of any mixture of sequences.

    ropes: layer type -> rotary embedding; a type without one has no positions
    embedding_factor: of `embed`, unless that does something else
    """

    embedding_factor = 1.0

    def __init__(self, hparams: HParams, blocks: Sequence[Block], ropes: Mapping[str, Rope]) -> None:
        self.hparams = hparams
        self.ropes = ropes
        self.token_embd = Embedding(hparams.vocab_size, hparams.hidden_size)
        self.blk = list(blocks)
        self.output_norm = RMSNorm(hparams.hidden_size, hparams.rms_norm_eps)
        self.output = None if hparams.has_tied_embeddings else Linear(hparams.hidden_size, hparams.vocab_size)

    def prepare(self) -> None:
        """Let a tied head read the embedding table."""
        if self.output is None:
            self.output = Linear(0, 0)
            self.output.weight = self.token_embd.weight

    def forward(self, batch: ForwardBatch, kv_cache: KVCache, state_pool: StatePool) -> Tensor:
        """Run one step; keys, values and recurrent states of its tokens are stored in the pools.

        returns [num_logits, vocab_size] f32, row i for row batch.logits_indices[i] of the step
        """
        return self.head(self.hidden_states(batch, kv_cache, state_pool).index_select(0, batch.logits_indices))

    def hidden_states(self, batch: ForwardBatch, kv_cache: KVCache, state_pool: StatePool) -> Tensor:
        """As `forward`, without the head.

        returns [num_tokens, hidden_size], a row for each token of the step
        """
        step = plan_step(batch, kv_cache, state_pool, self.hparams, self.ropes, self.numerics)
        x = self.embed(batch.input_ids)
        for block in self.blk:
            x = block(x, step)
        return x

    def embed(self, input_ids: Tensor) -> Tensor:
        """input_ids: [num_tokens] int64 -> [num_tokens, hidden_size]."""
        x = self.token_embd(input_ids)
        return x if self.embedding_factor == 1.0 else x * self.embedding_factor

    def head(self, x: Tensor) -> Tensor:
        """x: [num_logits, hidden_size] -> logits [num_logits, vocab_size]."""
        assert self.output is not None
        return self.output(self.output_norm(x))

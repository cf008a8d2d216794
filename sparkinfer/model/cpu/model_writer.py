"""Writes a whole model's program, blocks to logits. Knows their order; parts have writers of their own."""

from __future__ import annotations

from kernels.cpu import program as words
from kernels.cpu.rows import GELU_TANH, SILU
from sparkinfer.model.attention import Attention
from sparkinfer.model.block import HybridBlock, PreNormBlock, SandwichBlock
from sparkinfer.model.cpu.attention_writer import write_attention
from sparkinfer.model.cpu.context import Writing
from sparkinfer.model.cpu.delta_writer import write_delta_net
from sparkinfer.model.cpu.moe_writer import write_experts
from sparkinfer.model.cpu.program import Buffer
from sparkinfer.model.feed_forward import FeedForward
from sparkinfer.model.norm import RMSNorm
from sparkinfer.model.transformer import Transformer


def write_model(writing: Writing, model: Transformer) -> bool:
    """All blocks, and the logits of the rows that the step lists; before them the embedding, if the head's matrix is
    its table.

    returns whether the program embeds the step's tokens, else its residual stream has to be filled
    """
    embeds = model.output is None and type(model).embed is Transformer.embed
    head = writing.matrices(model.token_embd) if embeds else []
    if embeds:
        writing.program.embedding(head[0], model.embedding_factor, writing.x)
    for block in model.blk:
        if isinstance(block, SandwichBlock):
            _write_sandwich(writing, block)
        else:
            assert isinstance(block, PreNormBlock | HybridBlock)
            after = block.ffn_norm if isinstance(block, PreNormBlock) else block.post_attention_norm
            if isinstance(block.mixer, Attention):
                write_attention(writing, block.mixer, block.attn_norm, writing.x, adds=True)
            else:
                write_delta_net(writing, block.mixer, block.attn_norm, writing.x)  # type: ignore[arg-type]  # no third
            if isinstance(block.feed_forward, FeedForward):
                _write_feed_forward(writing, block.feed_forward, after, writing.x, adds=True)
            else:
                write_experts(writing, block.feed_forward, after, writing.x)  # type: ignore[arg-type]  # no third
    writing.program.end_of_body()
    head = head or writing.matrices(model.token_embd if model.output is None else model.output)
    x = writing.normed(model.output_norm, head, rows=words.LOGIT_ROWS)
    writing.program.matmul(head, x, None, count=words.NUM_LOGITS)
    return embeds


def _write_sandwich(writing: Writing, block: SandwichBlock) -> None:
    half = writing.program.floats("half", writing.hparams.hidden_size)
    assert isinstance(block.mixer, Attention)
    assert isinstance(block.feed_forward, FeedForward)
    write_attention(writing, block.mixer, block.attn_norm, half, adds=False)
    writing.add_normed(block.post_attention_norm, half)
    _write_feed_forward(writing, block.feed_forward, block.ffn_norm, half, adds=False)
    writing.add_normed(block.post_ffw_norm, half)


def _write_feed_forward(writing: Writing, layer: FeedForward, norm: RMSNorm, out: Buffer, adds: bool) -> None:
    program, size = writing.program, writing.hparams.ffn_size
    gate_up, down = writing.matrices(layer.ffn_gate, layer.ffn_up), writing.matrices(layer.ffn_down)
    both = program.floats("gate and up", 2 * size)
    program.matmul(gate_up, writing.normed(norm, gate_up), both)
    activated = writing.activated(both, size, GELU_TANH if layer.is_gelu else SILU, down)
    program.matmul(down, activated, out, adds=adds)

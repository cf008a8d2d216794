"""The two ways a layer's halves join the residual stream. Knows norms and order; never what the halves compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.module import Module
from sparkinfer.model.norm import RMSNorm
from sparkinfer.model.step import Step


class Block(Protocol):
    """One layer of a transformer."""

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """x: [num_tokens, hidden_size] -> [num_tokens, hidden_size], the residual stream."""


Mixer = Callable[[Tensor, Step], Tensor]  # attention or gated delta net
FeedForwardPart = Callable[[Tensor], Tensor]


class PreNormBlock(Module):
    """x += mixer(norm(x)); x += feed_forward(norm(x))."""

    def __init__(self, hparams: HParams, mixer: Mixer, feed_forward: FeedForwardPart) -> None:
        self.attn_norm = RMSNorm(hparams.hidden_size, hparams.rms_norm_eps)
        self.mixer = mixer
        self.ffn_norm = RMSNorm(hparams.hidden_size, hparams.rms_norm_eps)
        self.feed_forward = feed_forward

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """x: [num_tokens, hidden_size] -> same."""
        x = x + self.mixer(self.attn_norm(x), step)
        return x + self.feed_forward(self.ffn_norm(x))


class HybridBlock(Module):
    """PreNormBlock with the name that hybrid models give the second norm."""

    def __init__(self, hparams: HParams, mixer: Mixer, feed_forward: FeedForwardPart) -> None:
        self.attn_norm = RMSNorm(hparams.hidden_size, hparams.rms_norm_eps)
        self.mixer = mixer
        self.post_attention_norm = RMSNorm(hparams.hidden_size, hparams.rms_norm_eps)
        self.feed_forward = feed_forward

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """x: [num_tokens, hidden_size] -> same."""
        x = x + self.mixer(self.attn_norm(x), step)
        return x + self.feed_forward(self.post_attention_norm(x))


class SandwichBlock(Module):
    """Each half is normed before and after: x += norm(half(norm(x)))."""

    def __init__(self, hparams: HParams, mixer: Mixer, feed_forward: FeedForwardPart, post_norm_eps: float) -> None:
        self.attn_norm = RMSNorm(hparams.hidden_size, hparams.rms_norm_eps)
        self.mixer = mixer
        self.post_attention_norm = RMSNorm(hparams.hidden_size, post_norm_eps)
        self.ffn_norm = RMSNorm(hparams.hidden_size, hparams.rms_norm_eps)
        self.feed_forward = feed_forward
        self.post_ffw_norm = RMSNorm(hparams.hidden_size, post_norm_eps)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """x: [num_tokens, hidden_size] -> same."""
        x = x + self.post_attention_norm(self.mixer(self.attn_norm(x), step))
        return x + self.post_ffw_norm(self.feed_forward(self.ffn_norm(x)))

"""One decode step, one token per sequence, as a fixed list of kernel launches over preallocated tensors.

It can be captured in a CUDA graph: no allocation, no host read. The kernel that finishes a residual row also emits the
next layer's int8 input, so no norm has a launch of its own. Knows nothing of scheduling or sampling parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.argmax import argmax
from kernels.few_experts import ExpertScratch, few_experts
from kernels.gated_activation import gated_activation
from kernels.gated_delta_step import gated_delta_step
from kernels.paged_decode import MANY_SEQS_SPLITS, NUM_SPLITS, PagedKV, paged_decode
from kernels.post_norm import post_norm
from kernels.projections import FEW, project, project_residual, project_swiglu
from kernels.quant_embedding import quant_embedding
from kernels.quant_format import QuantActivation, QuantWeight
from kernels.quantize_rows import quantize_rows
from sparkinfer.model.cuda.half_forms import HalfForms
from sparkinfer.model.cuda.weights import AttentionLayer, DecodeWeights, DeltaNetLayer, DenseFFN, ExpertFFN


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """What changes from step to step, at fixed addresses, plus the pools the step works in.

    input_ids, positions, state_slots: [num_seqs] int64; input_ids receives the greedy next tokens
    block_tables:  [num_seqs, max_blocks] int32; context_lens: [num_seqs] int32, the new token counted
    kv:            per layer (k, v) [num_slots, num_kv_heads, head_dim], or None
    kv_scales:     per layer (k, v) [num_slots, num_kv_heads] f16 with an int8 cache, else None
    conv, state:   per layer ring [num_slots, 4, channels] and state [num_slots, heads, d, d], or None
    held:          per layer what the states lack (kernels/held_updates.py), or None
    """

    input_ids: Tensor
    positions: Tensor
    state_slots: Tensor
    block_tables: Tensor
    context_lens: Tensor
    block_size: int
    kv: tuple[tuple[Tensor, Tensor] | None, ...]
    kv_scales: tuple[tuple[Tensor, Tensor] | None, ...]
    conv: tuple[Tensor | None, ...]
    state: tuple[Tensor | None, ...]
    held: tuple[Tensor | None, ...]

    @property
    def num_seqs(self) -> int:
        return self.input_ids.shape[0]

    def recurrent(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """(ring, state, held) of a layer that has them."""
        ring, state, held = self.conv[index], self.state[index], self.held[index]
        assert ring is not None
        assert state is not None
        assert held is not None
        return ring, state, held


@dataclass(frozen=True, slots=True)
class Following:
    """What reads rows of the residual stream when they are finished: a norm's weights, then these matrices."""

    norm: Tensor
    weights: tuple[QuantWeight, ...]


def empty_activation(
    num_rows: int, num_cols: int, device: torch.device, has_plain: bool = True
) -> QuantActivation:
    """Planes of a `QuantActivation`, uninitialised."""

    def plane(width: int) -> Tensor:
        return torch.empty(num_rows, width, dtype=torch.float32, device=device)

    values = torch.empty(num_rows, 2, num_cols, dtype=torch.int8, device=device)
    blocks = num_cols // 16
    plain = plane(num_cols) if has_plain else None
    return QuantActivation(values, plane(blocks), plane(blocks), plain, plane(blocks))


@dataclass(frozen=True, slots=True)
class Workspace:
    """The large tensors of a step, which steps that follow one another may share.

    logits:   [num_seqs, vocab_size] f32
    attention: what `paged_decode` works in
    """

    logits: Tensor
    attention: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def empty(cls, weights: DecodeWeights, num_seqs: int, device: torch.device) -> Workspace:
        heads = weights.heads
        splits = max(min(num_seqs, FEW) * NUM_SPLITS, num_seqs * MANY_SEQS_SPLITS)  # of all sequences together
        logits = torch.empty(num_seqs, weights.output.num_rows, device=device)
        lse = torch.empty(splits, heads.num_q_heads, device=device)
        partial = torch.empty(*lse.shape, heads.head_dim, device=device)
        counts = torch.zeros(num_seqs, heads.num_kv_heads, dtype=torch.int32, device=device)
        return cls(logits, (partial, lse, counts))


class DecodeStep:
    """The step for one batch size. Owns its scratch tensors; every launch goes to the current stream."""

    def __init__(
        self, weights: DecodeWeights, num_seqs: int, device: torch.device, pdl: bool = True,
        workspace: Workspace | None = None,
    ) -> None:
        """workspace: of so many sequences or more; None: one of its own."""
        self.weights = weights
        self.pdl = pdl
        self.residual = torch.empty(num_seqs, weights.hidden_size, dtype=torch.float32, device=device)
        self.hidden = empty_activation(num_seqs, weights.hidden_size, device)
        self.workspace = workspace or Workspace.empty(weights, num_seqs, device)
        self.logits = self.workspace.logits[:num_seqs]
        self._forms = HalfForms(self.hidden)
        self._count = torch.zeros(1, dtype=torch.int32, device=device)
        self._scratch: dict[tuple[str, int, int], Tensor | HalfForms] = {}
        self._num_seqs = num_seqs
        self._device = device

    def run(self, inputs: DecodeInputs) -> Tensor:
        """Advance every sequence by its input token.

        returns [num_seqs, vocab_size] f32 logits; inputs.input_ids then holds their argmax
        """
        weights = self.weights
        quant_embedding(inputs.input_ids, weights.embedding, self.residual, pdl=self.pdl)
        weights.ends.enter(self.residual, weights.eps)
        first, *others = [Following(layer.attn_norm, layer.mixer.inputs) for layer in weights.layers]
        self._enter(first)
        others.append(Following(weights.output_norm, (weights.output,)))
        for index, (layer, following) in enumerate(zip(weights.layers, others, strict=True)):
            ffn_input = Following(layer.ffn_norm, layer.ffn.inputs)
            if isinstance(layer.mixer, AttentionLayer):
                mixed = self._attention(layer.mixer, index, inputs)
                if layer.post_norms is None:
                    self._add_product(mixed, layer.mixer.output, ffn_input, 0)
                else:
                    self._add_normed(mixed, layer.mixer.output, layer.post_norms[0], ffn_input)
            else:
                self._delta_net(layer.mixer, index, inputs, ffn_input)
            if isinstance(layer.ffn, ExpertFFN):
                self._experts(layer.ffn, following)
            else:
                self._dense(layer.ffn, following, None if layer.post_norms is None else layer.post_norms[1])
        self._project([weights.output], self.logits)
        weights.ends.leave(self.logits)
        argmax(self.logits, inputs.input_ids, pdl=self.pdl)
        return self.logits

    def _enter(self, following: Following) -> None:
        """Make the first layer's input of the residual stream."""
        self.hidden = self._forms.read_by(following.weights)
        quantize_rows(self.residual, following.norm, self.hidden, self.weights.eps, pdl=self.pdl)

    def _project(self, weights: Sequence[QuantWeight], out: Tensor) -> None:
        """Products of a layer's input, side by side."""
        project(self.hidden, weights, self.weights.eps, out=out, pdl=self.pdl)

    def _add_product(self, x: QuantActivation, weight: QuantWeight, following: Following, group: int) -> None:
        """To the residual stream, and make the next input; group: columns of x that share an RMS factor, or 0."""
        self.hidden = self._forms.read_by(following.weights)
        project_residual(x, weight, self.residual, following.norm, self.hidden, group, self.weights.eps, pdl=self.pdl)

    def _attention(self, layer: AttentionLayer, index: int, inputs: DecodeInputs) -> QuantActivation:
        heads = self.weights.heads
        projected = self._rows("qkv", heads.row)
        self._project(layer.qkv, projected)
        if layer.bias is not None:
            projected.add_(layer.bias)
        kv, scales = inputs.kv[index], inputs.kv_scales[index]
        assert kv is not None
        mixed = self._activation("attention", self._num_seqs, heads.num_q_heads * heads.head_dim, (layer.output,))
        cache = PagedKV(*kv, scales, inputs.block_tables, inputs.context_lens, inputs.block_size, layer.window)
        inv_freq = self.weights.inv_freq if layer.inv_freq is None else layer.inv_freq
        paged_decode(projected, inputs.positions, cache, heads, inv_freq, layer.norms, self.workspace.attention,
                     mixed, self.weights.eps, pdl=self.pdl, scale=layer.scale)
        return mixed

    def _delta_net(self, layer: DeltaNetLayer, index: int, inputs: DecodeInputs, following: Following) -> None:
        projected = self._rows("delta_net", sum(w.num_rows for w in layer.projections))
        self._project(layer.projections, projected)
        mixed = self._activation("delta_net", self._num_seqs, layer.output.num_cols)
        gated_delta_step(projected, layer.small, *inputs.recurrent(index), inputs.state_slots, inputs.positions, mixed,
                         pdl=self.pdl)
        self._add_product(mixed, layer.output, following, layer.small.norm.shape[0])

    def _experts(self, ffn: ExpertFFN, following: Following) -> None:
        slots = ffn.top_k + (ffn.shared is not None)
        h = self._activation("experts", self._num_seqs * slots, ffn.down.num_cols)
        ids = self._plain("expert ids", ffn.top_k, torch.int32)
        weights = self._plain("expert weights", slots, torch.float32)
        scratch = ExpertScratch(self._rows("router", ffn.router.num_rows), h, ids, weights, self._count)
        x = self.hidden
        self.hidden = self._forms.read_by(following.weights)
        few_experts(x, ffn.router, (ffn.gate, ffn.up, ffn.down), ffn.shared, scratch, self.residual, following.norm,
                    self.hidden, self.weights.eps, pdl=self.pdl)

    def _dense(self, ffn: DenseFFN, following: Following, post_norm_weight: Tensor | None) -> None:
        readers = () if ffn.is_gelu else (ffn.down,)
        h = self._activation("dense", self._num_seqs, ffn.down.num_cols, readers, ffn.inputs)
        if ffn.is_gelu:
            gate_up = self._rows("gate_up", 2 * ffn.down.num_cols)
            project(self.hidden, [ffn.gate, ffn.up], self.weights.eps, out=gate_up, pdl=self.pdl)
            gated_activation(gate_up, h, ffn.is_gelu, pdl=self.pdl)
        else:
            project_swiglu(self.hidden, ffn.gate, ffn.up, h, self.weights.eps, self.pdl, ffn.half_factor)
        if post_norm_weight is None:
            self._add_product(h, ffn.down, following, 0)
        else:
            self._add_normed(h, ffn.down, post_norm_weight, following)

    def _add_normed(self, x: QuantActivation, weight: QuantWeight, norm_weight: Tensor, following: Following) -> None:
        y = self._rows("normed", weight.num_rows)
        project(x, [weight], None, out=y, pdl=self.pdl)
        self.hidden = self._forms.read_by(following.weights)
        post_norm(y, norm_weight, self.weights.post_eps, self.residual, following.norm, self.hidden, pdl=self.pdl)

    def _rows(self, name: str, width: int) -> Tensor:
        key = (name, self._num_seqs, width)
        if key not in self._scratch:
            padded = -(-width // 16) * 16  # rows start at multiples of 64 bytes
            rows = torch.empty(self._num_seqs, padded, dtype=torch.float32, device=self._device)
            self._scratch[key] = rows[:, :width]
        scratch = self._scratch[key]
        assert isinstance(scratch, Tensor)
        return scratch

    def _activation(
        self, name: str, num_rows: int, num_cols: int, readers: Sequence[QuantWeight] = (),
        makers: Sequence[QuantWeight] = (),
    ) -> QuantActivation:
        """readers, makers: as `HalfForms.read_by` takes them, of activations that may have f16 rows."""
        key = (name + "/int8", num_rows, num_cols)
        if key not in self._scratch:
            self._scratch[key] = HalfForms(empty_activation(num_rows, num_cols, self._device, has_plain=False))
        forms = self._scratch[key]
        assert isinstance(forms, HalfForms)
        return forms.read_by(readers, makers)

    def _plain(self, name: str, width: int, dtype: torch.dtype) -> Tensor:
        key = (name, self._num_seqs, width)
        if key not in self._scratch:
            self._scratch[key] = torch.empty(self._num_seqs, width, dtype=dtype, device=self._device)
        scratch = self._scratch[key]
        assert isinstance(scratch, Tensor)
        return scratch

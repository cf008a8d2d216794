"""A decode step of 16 rows and more: quantised matrices meet all rows at once, experts are sorted.

Rows of the residual stream are finished, normed and rounded to f16 by one kernel each. Knows which models it takes;
otherwise as decode.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.delta_rows import ProjectedParts, row_width
from kernels.normed_rows import NormedRows, add_parts_normed, combine_experts_normed
from kernels.projections import (
    FEW,
    Rows,
    feed_forward_parts,
    normed_parts,
    product_parts,
    project_normed,
    takes_normed,
)
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight
from kernels.swiglu_rows import tile_counts
from kernels.wide_delta_step import wide_delta_step
from sparkinfer.model.cuda.decode import DecodeInputs, DecodeStep, Following, Workspace
from sparkinfer.model.cuda.experts import choose, have_kernels, products
from sparkinfer.model.cuda.weights import DecodeLayer, DecodeWeights, DeltaNetLayer, DenseFFN, ExpertFFN


def decode_step(
    weights: DecodeWeights, num_seqs: int, device: torch.device, pdl: bool = True, workspace: Workspace | None = None
) -> DecodeStep:
    """The step that is best for so many rows of the model."""
    is_wide = num_seqs > FEW and takes(weights, num_seqs)
    return (WideDecodeStep if is_wide else DecodeStep)(weights, num_seqs, device, pdl, workspace)


def takes(weights: DecodeWeights, num_seqs: int) -> bool:
    """Whether every matrix has a product of so many rows, and every layer a form that is known here."""
    return takes_normed(weights.output, num_seqs) and all(_takes_layer(layer, num_seqs) for layer in weights.layers)


def _takes_layer(layer: DecodeLayer, num_seqs: int) -> bool:
    ffn, mixer = layer.ffn, layer.mixer
    if layer.post_norms is not None or (isinstance(ffn, DenseFFN) and ffn.is_gelu):
        return False
    if isinstance(ffn, ExpertFFN) and not have_kernels(ffn):
        return False
    first, second = _feed_forward(ffn)
    has_products = all(takes_normed(weight, num_seqs) for weight in (*mixer.inputs, mixer.output, *first, *second))
    return has_products and all(weight.format != QuantFormat.F32 for weight in (mixer.output, *second))


def _feed_forward(ffn: DenseFFN | ExpertFFN) -> tuple[tuple[QuantWeight, ...], tuple[QuantWeight, ...]]:
    """The matrices that every row meets: those that take the layer's input, and those that take what they make."""
    if isinstance(ffn, DenseFFN):
        return (ffn.gate, ffn.up), (ffn.down,)
    return ((ffn.router,), ()) if ffn.shared is None else ((ffn.router, *ffn.shared[:2]), ffn.shared[2:])


class WideDecodeStep(DecodeStep):
    """The step for one batch size that `takes` admits."""

    def __init__(
        self, weights: DecodeWeights, num_seqs: int, device: torch.device, pdl: bool = True,
        workspace: Workspace | None = None,
    ) -> None:
        super().__init__(weights, num_seqs, device, pdl, workspace)
        self._normed = NormedRows.empty(num_seqs, weights.hidden_size, device)
        seconds = (_feed_forward(layer.ffn)[1] for layer in weights.layers)
        self._counts = tile_counts(max((down.num_cols for second in seconds for down in second), default=0), device)
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it unannotated

    def _enter(self, following: Following) -> None:
        self._add_parts(None, following)

    def _project(self, weights: Sequence[QuantWeight], out: Tensor) -> None:
        project_normed(self._normed, weights, out, self.pdl)

    def _add_product(self, x: QuantActivation, weight: QuantWeight, following: Following, group: int) -> None:
        self._add_parts(Rows(x, group, self.weights.eps, self.pdl).parts(weight), following)

    def _delta_net(self, layer: DeltaNetLayer, index: int, inputs: DecodeInputs, following: Following) -> None:
        ring, state, held = inputs.recurrent(index)
        _, num_heads, _, head_dim = held.shape
        num_v_heads = num_heads - layer.small.num_k_heads
        products = [normed_parts(self._normed, weight, self.pdl) for weight in layer.projections]
        projected = ProjectedParts.of(products, ring.shape[2], num_v_heads, head_dim)
        rows = self._rows("delta_rows", num_heads * row_width(head_dim)).view(self._num_seqs, num_heads, -1)
        mixed = self._plain("delta_net", layer.output.num_cols, torch.float16)
        wide_delta_step(projected, layer.small, ring, state, held, inputs.state_slots, inputs.positions, rows, mixed,
                        self.weights.eps, self.pdl)
        self._add_parts(product_parts(mixed, layer.output, self.pdl), following)

    def _experts(self, ffn: ExpertFFN, following: Following) -> None:
        x, eps = self._normed, self.weights.eps
        shared = self._shared_expert(ffn)
        ids, weights = choose(normed_parts(x, ffn.router, self.pdl), ffn, self.pdl)
        found = products(x.packed, ids, ffn, torch.float32, self.pdl)
        if shared is not None and self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        combine_experts_normed(found, weights, shared, self.residual, following.norm, eps, x, self.pdl)

    def _shared_expert(self, ffn: ExpertFFN) -> Tensor | None:
        """Parts of its product, made beside what the current stream does next: small kernels leave the card room."""
        if ffn.shared is None:
            return None
        if self._side is None:
            return feed_forward_parts(self._normed, ffn.shared, ffn.shared_factor, self._counts, self.pdl)
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            return feed_forward_parts(self._normed, ffn.shared, ffn.shared_factor, self._counts, self.pdl)

    def _dense(self, ffn: DenseFFN, following: Following, post_norm_weight: Tensor | None) -> None:
        assert post_norm_weight is None
        parts = feed_forward_parts(self._normed, (ffn.gate, ffn.up, ffn.down), ffn.half_factor, self._counts, self.pdl)
        self._add_parts(parts, following)

    def _add_parts(self, parts: Tensor | None, following: Following) -> None:
        add_parts_normed(parts, self.residual, following.norm, self.weights.eps, self._normed, self.pdl)

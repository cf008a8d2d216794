"""Models of real shapes, or tiny ones, with random weights made on the device: decode weights, pools and inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.gated_delta_step import DeltaNetWeights
from kernels.held_updates import COLUMNS, HELD
from kernels.quant_format import QuantFormat, QuantWeight
from kernels.reference.held_updates import settled
from kernels.repack import concat_rows
from kernels.rope_store_kv import HeadShape
from sparkinfer.model.cuda.decode import DecodeInputs
from sparkinfer.model.cuda.half_factor import half_factor
from sparkinfer.model.cuda.weights import (
    AttentionLayer,
    DecodeLayer,
    DecodeWeights,
    DeltaNetLayer,
    DenseFFN,
    ExpertFFN,
)
from tests.kernels.random_weights import random_weight

F32, Q8_0, Q4_K, Q5_K, Q6_K = QuantFormat.F32, QuantFormat.Q8_0, QuantFormat.Q4_K, QuantFormat.Q5_K, QuantFormat.Q6_K


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes and types of a model. `more`: the type of v, qkv and down in the layers that get more bits."""

    num_layers: int
    hidden: int
    ffn: int
    heads: HeadShape
    n_rot: int
    vocab: int
    projection: QuantFormat
    more: QuantFormat
    down: QuantFormat
    head: QuantFormat
    embedding: QuantFormat
    experts: int = 0
    top_k: int = 0
    has_shared: bool = False
    gate_up: QuantFormat = Q4_K
    alpha_beta: QuantFormat = F32
    k_heads: int = 0   # 0: every layer is attention; else each fourth
    v_heads: int = 0
    d: int = 128
    has_qk_norm: bool = True

    def is_attention(self, index: int) -> bool:
        return self.k_heads == 0 or (index + 1) % 4 == 0

    def has_more_bits(self, index: int) -> bool:
        """llama-quantize's rule for Q4_K_M."""
        eighth = self.num_layers // 8
        return index < eighth or index >= 7 * eighth or (index - eighth) % 3 == 2


# docs/models: Qwen3.6-35B-A3B UD-Q4_K_M, Qwen3.8-27B Q4_K_M, Qwen3-30B-A3B Q4_K_M
SHAPES = {
    "35B-A3B": ModelShape(40, 2048, 512, HeadShape(16, 2, 256, True), 64, 248320, Q8_0, Q8_0, Q5_K, Q6_K, Q8_0,
                          experts=256, top_k=8, has_shared=True, k_heads=16, v_heads=32),
    "27B": ModelShape(64, 5120, 17408, HeadShape(24, 4, 256, True), 64, 248320, Q4_K, Q6_K, Q4_K, Q6_K, Q4_K,
                      alpha_beta=Q4_K, k_heads=16, v_heads=48),
    "30B-A3B": ModelShape(48, 2048, 768, HeadShape(32, 4, 128, False), 128, 151936, Q4_K, Q6_K, Q4_K, Q6_K, Q4_K,
                          experts=128, top_k=8),
}
TINY_HYBRID = ModelShape(4, 256, 32, HeadShape(4, 2, 32, True), 16, 300, Q8_0, Q8_0, Q8_0, Q6_K, Q8_0, experts=6,
                         top_k=2, has_shared=True, k_heads=2, v_heads=4, d=16)
TINY_DENSE = ModelShape(2, 256, 256, HeadShape(8, 2, 32, False), 32, 70, Q4_K, Q6_K, Q4_K, Q6_K, Q4_K)


class _Maker:
    def __init__(self, device: str, seed: int) -> None:
        self.device = device
        self.seed = seed

    def weight(self, rows: int, cols: int, kind: QuantFormat, scale: float = 1.0) -> QuantWeight:
        self.seed += 1
        weight = random_weight(rows, cols, kind, self.device, self.seed)
        if kind == F32:
            plane = weight.quants * scale
            return QuantWeight(kind, rows, cols, plane, plane, plane, plane, plane)
        return weight

    def vector(self, size: int) -> Tensor:
        return torch.rand(size, device=self.device) + 0.5


def _joined(maker: _Maker, cols: int, parts: list[tuple[int, QuantFormat]]) -> tuple[QuantWeight, ...]:
    """Neighbouring parts of one type become one matrix."""
    found: list[QuantWeight] = []
    for rows, kind in parts:
        weight = maker.weight(rows, cols, kind, 0.02)
        if found and found[-1].format == kind:
            found[-1] = concat_rows([found[-1], weight])
        else:
            found.append(weight)
    return tuple(found)


def _mixer(maker: _Maker, shape: ModelShape, index: int) -> AttentionLayer | DeltaNetLayer:
    more = shape.more if shape.has_more_bits(index) else shape.projection
    if shape.is_attention(index):
        heads = shape.heads
        kv_rows = heads.num_kv_heads * heads.head_dim
        parts = [(heads.num_q_heads * heads.q_stride + kv_rows, shape.projection), (kv_rows, more)]
        norms = (maker.vector(heads.head_dim), maker.vector(heads.head_dim)) if shape.has_qk_norm else None
        output = maker.weight(shape.hidden, heads.num_q_heads * heads.head_dim, shape.projection)
        return AttentionLayer(_joined(maker, shape.hidden, parts), norms, output)
    channels = (2 * shape.k_heads + shape.v_heads) * shape.d
    inner = shape.v_heads * shape.d
    parts = [(channels, more), (inner, shape.projection), (2 * shape.v_heads, shape.alpha_beta)]
    small = DeltaNetWeights(torch.randn(4, channels, device=maker.device) * 0.3, -maker.vector(shape.v_heads),
                            maker.vector(shape.v_heads), maker.vector(shape.d), shape.k_heads)
    return DeltaNetLayer(_joined(maker, shape.hidden, parts), small, maker.weight(shape.hidden, inner,
                                                                                  shape.projection))


def _ffn(maker: _Maker, shape: ModelShape, index: int, norm: Tensor) -> DenseFFN | ExpertFFN:
    down = shape.more if shape.has_more_bits(index) and shape.down == Q4_K else shape.down
    if not shape.experts:
        gate, up = (maker.weight(shape.ffn, shape.hidden, shape.gate_up) for _ in range(2))
        return DenseFFN(gate, up, maker.weight(shape.hidden, shape.ffn, down), half_factor(gate, up, norm))
    router = maker.weight(shape.experts + shape.has_shared, shape.hidden, F32, 0.02)
    gate, up = (maker.weight(shape.experts * shape.ffn, shape.hidden, shape.gate_up) for _ in range(2))
    shared, shared_factor = None, 1.0
    if shape.has_shared:
        halves = [maker.weight(shape.ffn, shape.hidden, Q8_0) for _ in range(2)]
        shared = (*halves, maker.weight(shape.hidden, shape.ffn, Q8_0))
        shared_factor = half_factor(*halves, norm)
    return ExpertFFN(router, gate, up, maker.weight(shape.experts * shape.hidden, shape.ffn, down), shared, shape.top_k,
                     half_factor(gate, up, norm), shared_factor)


def _layer(maker: _Maker, shape: ModelShape, index: int) -> DecodeLayer:
    attn_norm, mixer, ffn_norm = maker.vector(shape.hidden), _mixer(maker, shape, index), maker.vector(shape.hidden)
    return DecodeLayer(attn_norm, mixer, ffn_norm, _ffn(maker, shape, index, ffn_norm))


def random_model(shape: ModelShape, device: str, num_layers: int | None = None, seed: int = 1) -> DecodeWeights:
    """Decode weights of `shape`, or of its first `num_layers` layers."""
    maker = _Maker(device, seed)
    layers = tuple(_layer(maker, shape, i) for i in range(num_layers or shape.num_layers))
    inv_freq = 1e7 ** -(torch.arange(shape.n_rot // 2, device=device) / (shape.n_rot // 2))
    return DecodeWeights(maker.weight(shape.vocab, shape.hidden, shape.embedding), layers, maker.vector(shape.hidden),
                         maker.weight(shape.vocab, shape.hidden, shape.head), shape.heads, inv_freq, 1e-6)


def random_inputs(
    shape: ModelShape, weights: DecodeWeights, num_seqs: int, context_len: int, device: str, is_int8: bool = False
) -> DecodeInputs:
    """Sequences of `context_len` tokens (the new one counted) with random caches and states, blocks scattered."""
    block_size = 16
    max_blocks = -(-context_len // block_size)
    tables = torch.randperm(num_seqs * max_blocks, device=device).reshape(num_seqs, max_blocks)
    positions = torch.full((num_seqs,), context_len - 1, dtype=torch.int64, device=device)
    heads = shape.heads
    rows = num_seqs * max_blocks * block_size

    def cache() -> Tensor:
        size = (rows, heads.num_kv_heads, heads.head_dim)
        if is_int8:
            return torch.randint(-127, 128, size, dtype=torch.int8, device=device)
        return torch.randn(size, dtype=torch.bfloat16, device=device)

    attention = [isinstance(layer.mixer, AttentionLayer) for layer in weights.layers]
    channels = (2 * shape.k_heads + shape.v_heads) * shape.d
    kv = tuple((cache(), cache()) if is_attention else None for is_attention in attention)
    scales = tuple(
        tuple(torch.full((rows, heads.num_kv_heads), 0.01, dtype=torch.float16, device=device) for _ in range(2))
        if is_attention and is_int8 else None
        for is_attention in attention
    )
    conv = tuple(None if a else torch.randn(num_seqs, 4, channels, device=device) for a in attention)
    state = tuple(
        None if a else torch.randn(num_seqs, shape.v_heads, shape.d, shape.d, device=device) * 0.1 for a in attention
    )
    held = tuple(None if x is None else random_held(x, shape.k_heads) for x in state)
    ids = torch.randint(0, shape.vocab, (num_seqs,), device=device)
    lens = torch.full((num_seqs,), context_len, dtype=torch.int32, device=device)
    return DecodeInputs(ids, positions, torch.randperm(num_seqs, device=device), tables.int(), lens, block_size,
                        kv, scales, conv, state, held)


def random_held(state: Tensor, num_k_heads: int) -> Tensor:
    """Updates that states lack, of a random number for each slot; NaN where there are none."""
    num_slots, num_v_heads, d, _ = state.shape
    held = torch.randn(num_slots, num_k_heads + num_v_heads, HELD, d, device=state.device) * d**-0.5
    counts = torch.randint(0, HELD, (num_slots, 1, 1), device=state.device)
    is_held = torch.arange(HELD, device=state.device) < counts
    held.masked_fill_(~is_held[..., None], torch.nan)
    logs = torch.rand(num_slots, num_v_heads, HELD, device=state.device).mul(-0.5).cumsum(-1)
    columns = min(COLUMNS, d)
    marks = torch.zeros(num_slots, num_v_heads, d // columns, columns, device=state.device)
    marks[..., :HELD] = torch.where(is_held, logs - 1, 0)[:, :, None]
    held[:, num_k_heads:, -1] = marks.flatten(2)
    return held


def settled_states(inputs: DecodeInputs) -> list[Tensor]:
    """The layers' states with what they lack."""
    pairs = zip(inputs.state, inputs.held, strict=True)
    return [settled(state, held) for state, held in pairs if state is not None and held is not None]


def cloned(inputs: DecodeInputs) -> DecodeInputs:
    """The same step to run twice: every tensor that a step changes is copied."""

    def copies(pool: tuple) -> tuple:  # type: ignore[type-arg]
        return tuple(copies(x) if isinstance(x, tuple) else None if x is None else x.clone() for x in pool)

    return replace(inputs, input_ids=inputs.input_ids.clone(), kv=copies(inputs.kv), kv_scales=copies(inputs.kv_scales),
                   conv=copies(inputs.conv), state=copies(inputs.state), held=copies(inputs.held))

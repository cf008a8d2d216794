"""GGUF files of real models' shapes and types, or tiny ones, filled with random weights: same work, meaningless text.

    python -m ops.bench.synthetic_gguf 35B-A3B /dev/shm/model.gguf [--layers 8]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np

Q = gguf.GGMLQuantizationType
POOL_BYTES = 1 << 26  # random bytes that every tensor takes its quants from


@dataclass(frozen=True, slots=True)
class Shape:
    """One model. state_heads: (key, value) heads of delta-net layers, (0, 0) where there are none."""

    architecture: str
    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    rotated: int
    ffn: int
    vocab: int
    experts: tuple[int, int] = (0, 0)       # all, used; ffn is the width of one
    state_heads: tuple[int, int] = (0, 0)
    state: int = 128                        # width of such a head
    context: int = 262144
    theta: float = 1e7
    projection: Q = Q.Q4_K
    embedding: Q = Q.Q4_K
    down: Q | None = None                   # None: Q6_K in the layers with more bits, else Q4_K
    small: Q = Q.F32                        # ssm_alpha, ssm_beta

    @property
    def is_hybrid(self) -> bool:
        return self.state_heads[0] > 0

    def has_more_bits(self, layer: int) -> bool:
        """llama-quantize's rule for Q4_K_M."""
        eighth = self.layers // 8
        return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


SHAPES = {
    "35B-A3B": Shape("qwen35moe", 40, 2048, 16, 2, 256, 64, 512, 248320, experts=(256, 8), state_heads=(16, 32),
                     projection=Q.Q8_0, embedding=Q.Q8_0, down=Q.Q5_K, small=Q.Q8_0),
    "27B": Shape("qwen35", 64, 5120, 24, 4, 256, 64, 17408, 248320, state_heads=(16, 48)),
    "30B-A3B": Shape("qwen3moe", 48, 2048, 32, 4, 128, 128, 768, 151936, experts=(128, 8), context=40960, theta=1e6),
    "tiny-hybrid-moe": Shape("qwen35moe", 4, 256, 4, 2, 64, 32, 256, 1024, experts=(16, 4), state_heads=(2, 4),
                             state=64, context=4096, projection=Q.Q8_0, embedding=Q.Q8_0, down=Q.Q5_K, small=Q.Q8_0),
    "tiny-llama": Shape("llama", 2, 512, 8, 2, 64, 64, 768, 1024, context=4096, theta=1e4),
}


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...], Q]]:
    """(name, shape with the contiguous dimension last, type) in file order."""
    yield "token_embd.weight", (shape.vocab, shape.hidden), shape.embedding
    for layer in range(shape.layers):
        is_attention = not shape.is_hybrid or (layer + 1) % 4 == 0
        yield f"blk.{layer}.attn_norm.weight", (shape.hidden,), Q.F32
        for part in (_attention if is_attention else _delta_net, _experts if shape.experts[0] else _dense):
            for name, size, kind in part(shape, layer):
                yield f"blk.{layer}.{name}", size, kind
        second = "post_attention_norm" if shape.is_hybrid else "ffn_norm"
        yield f"blk.{layer}.{second}.weight", (shape.hidden,), Q.F32
    yield "output_norm.weight", (shape.hidden,), Q.F32
    yield "output.weight", (shape.vocab, shape.hidden), Q.Q6_K


def _attention(shape: Shape, layer: int) -> Iterator[tuple[str, tuple[int, ...], Q]]:
    q_rows, kv_rows = shape.q_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    is_wide = shape.has_more_bits(layer) and shape.projection == Q.Q4_K
    yield "attn_q.weight", (q_rows * (2 if shape.is_hybrid else 1), shape.hidden), shape.projection
    yield "attn_k.weight", (kv_rows, shape.hidden), shape.projection
    yield "attn_v.weight", (kv_rows, shape.hidden), Q.Q6_K if is_wide else shape.projection
    yield "attn_output.weight", (shape.hidden, q_rows), shape.projection
    if shape.architecture != "llama":
        yield "attn_q_norm.weight", (shape.head_dim,), Q.F32
        yield "attn_k_norm.weight", (shape.head_dim,), Q.F32


def _delta_net(shape: Shape, layer: int) -> Iterator[tuple[str, tuple[int, ...], Q]]:
    k_heads, v_heads = shape.state_heads
    channels, inner = (2 * k_heads + v_heads) * shape.state, v_heads * shape.state
    yield "attn_qkv.weight", (channels, shape.hidden), shape.projection
    yield "attn_gate.weight", (inner, shape.hidden), shape.projection
    yield "ssm_conv1d.weight", (channels, 4), Q.F32
    yield "ssm_dt.bias", (v_heads,), Q.F32
    yield "ssm_a", (v_heads,), Q.F32
    yield "ssm_beta.weight", (v_heads, shape.hidden), shape.small
    yield "ssm_alpha.weight", (v_heads, shape.hidden), shape.small
    yield "ssm_norm.weight", (shape.state,), Q.F32
    yield "ssm_out.weight", (shape.hidden, inner), shape.projection


def _dense(shape: Shape, layer: int) -> Iterator[tuple[str, tuple[int, ...], Q]]:
    yield "ffn_gate.weight", (shape.ffn, shape.hidden), Q.Q4_K
    yield "ffn_up.weight", (shape.ffn, shape.hidden), Q.Q4_K
    yield "ffn_down.weight", (shape.hidden, shape.ffn), _down_type(shape, layer)


def _experts(shape: Shape, layer: int) -> Iterator[tuple[str, tuple[int, ...], Q]]:
    experts = shape.experts[0]
    yield "ffn_gate_inp.weight", (experts, shape.hidden), Q.F32
    yield "ffn_gate_exps.weight", (experts, shape.ffn, shape.hidden), Q.Q4_K
    yield "ffn_up_exps.weight", (experts, shape.ffn, shape.hidden), Q.Q4_K
    yield "ffn_down_exps.weight", (experts, shape.hidden, shape.ffn), _down_type(shape, layer)
    if shape.is_hybrid:
        yield "ffn_gate_inp_shexp.weight", (shape.hidden,), Q.F32
        yield "ffn_gate_shexp.weight", (shape.ffn, shape.hidden), shape.projection
        yield "ffn_up_shexp.weight", (shape.ffn, shape.hidden), shape.projection
        yield "ffn_down_shexp.weight", (shape.hidden, shape.ffn), shape.projection


def _down_type(shape: Shape, layer: int) -> Q:
    return shape.down or (Q.Q6_K if shape.has_more_bits(layer) else Q.Q4_K)


# Byte offsets of the f16 fields of a block and what they get for weights of a standard deviation near 0.02.
SCALES = {
    Q.Q8_0: {0: 2.7e-4}, Q.Q4_K: {0: 1.4e-4, 2: 1e-3}, Q.Q5_K: {0: 7e-5, 2: 1e-3}, Q.Q6_K: {208: 1.5e-5},
}


def random_blocks(kind: Q, shape: tuple[int, ...], pool: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[..., row_bytes] uint8: blocks with random quants."""
    elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    num_blocks = math.prod(shape) // elements
    rolled = pool[int(rng.integers(0, pool.size // 2)) :]
    blocks = np.resize(rolled, num_blocks * block_bytes).reshape(num_blocks, block_bytes)
    for offset, scale in SCALES[kind].items():
        blocks[:, offset : offset + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return blocks.reshape(*shape[:-1], shape[-1] // elements * block_bytes)


def random_values(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Values of a tensor that files keep in f32."""
    if name.endswith("norm.weight"):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if name.endswith("ssm_a"):
        return -np.exp(rng.uniform(-1.0, 2.0, shape)).astype(np.float32)
    if name.endswith("ssm_dt.bias"):
        return rng.uniform(-4.0, -1.0, shape).astype(np.float32)
    return rng.normal(0, 0.05 if name.endswith("shexp.weight") else 0.3, shape).astype(np.float32)


def write(shape: Shape, path: Path, seed: int = 0) -> None:
    """Write the file; about 1 GB/s."""
    rng = np.random.default_rng(seed)
    pool = np.frombuffer(rng.bytes(POOL_BYTES if shape.vocab > 4096 else 1 << 20), np.uint8)
    writer = gguf.GGUFWriter(str(path), shape.architecture)
    _add_metadata(writer, shape)
    plan = list(tensors(shape))
    for name, size, kind in plan:
        if kind == Q.F32:
            writer.add_tensor_info(name, size, np.dtype(np.float32), 4 * math.prod(size))
        else:
            elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            packed = (*size[:-1], size[-1] // elements * block_bytes)
            writer.add_tensor_info(name, packed, np.dtype(np.uint8), math.prod(packed), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, size, kind in plan:
        is_plain = kind == Q.F32
        writer.write_tensor_data(random_values(name, size, rng) if is_plain else random_blocks(kind, size, pool, rng))
    writer.close()


def _add_metadata(writer: gguf.GGUFWriter, shape: Shape) -> None:
    prefix = shape.architecture
    counts = {
        "block_count": shape.layers, "context_length": shape.context, "embedding_length": shape.hidden,
        "feed_forward_length": shape.ffn, "attention.head_count": shape.q_heads,
        "attention.head_count_kv": shape.kv_heads, "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim, "rope.dimension_count": shape.rotated,
    }
    if shape.experts[0]:
        counts |= {"expert_count": shape.experts[0], "expert_used_count": shape.experts[1],
                   "expert_feed_forward_length": shape.ffn}
    if shape.is_hybrid:
        k_heads, v_heads = shape.state_heads
        counts |= {"full_attention_interval": 4, "ssm.conv_kernel": 4, "ssm.state_size": shape.state,
                   "ssm.group_count": k_heads, "ssm.time_step_rank": v_heads, "ssm.inner_size": v_heads * shape.state}
        if shape.experts[0]:
            counts["expert_shared_feed_forward_length"] = shape.ffn
        third = shape.rotated // 6
        writer.add_array(f"{prefix}.rope.dimension_sections", [shape.rotated // 2 - 2 * third, third, third, 0])
    for key, value in counts.items():
        writer.add_uint32(f"{prefix}.{key}", value)
    writer.add_float32(f"{prefix}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{prefix}.rope.freq_base", shape.theta)
    _add_tokenizer(writer, shape.vocab)


def _add_tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    """Bytes, filler words, ChatML's control tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = letters + [f"word{i}" for i in range(vocab - len(letters) - len(control))] + control
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (vocab - len(control)) + [3] * len(control))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(vocab - 1)
    writer.add_add_bos_token(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int, default=0, help="keep only so many layers")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    started = time.perf_counter()
    write(replace(shape, layers=arguments.layers or shape.layers), arguments.path)
    size, seconds = arguments.path.stat().st_size, time.perf_counter() - started
    print(f"{arguments.path}: {size / 1e9:.2f} GB in {seconds:.1f} s")


if __name__ == "__main__":
    main()

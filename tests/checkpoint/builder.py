"""Writes GGUF bytes field by field, wrong ones included; and the smallest models of every architecture."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkinfer.checkpoint.ggml_type import GGMLType

NUMBERS = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7,
           "u64": 10, "i64": 11, "f64": 12}
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class Typed:
    """A metadata value whose type is not the one that Python's suggests; `raw` replaces the encoded value."""

    kind: str
    value: Any = None
    raw: bytes | None = None


def string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> tuple[int, bytes]:
    """(type id, bytes) of a metadata value: int -> u32, float -> f32, lists by their first element."""
    if isinstance(value, Typed):
        type_id = NUMBERS[value.kind]
        return type_id, struct.pack("<" + FORMATS[type_id], value.value) if value.raw is None else value.raw
    if isinstance(value, bool):
        return 7, bytes([value])
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str | bytes):
        return STRING, string(value)
    items = [typed(item) for item in value]
    element = items[0][0] if items else 4
    return ARRAY, struct.pack("<IQ", element, len(items)) + b"".join(raw for _, raw in items)


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    ggml_type: int = GGMLType.F32
    raw: bytes | None = None
    offset: int | None = None  # replaces the right one

    def data(self) -> bytes:
        if self.raw is not None:
            return self.raw
        known = GGMLType(self.ggml_type)
        return bytes(int(np.prod(self.shape)) // known.block_size * known.type_size)


def gguf_bytes(
    metadata: dict[str, Any], tensors: dict[str, Tensor] | None = None, version: int = 3, order: str = "<"
) -> bytes:
    """A file. Alignment follows `general.alignment`, 32 without it; nothing is checked."""
    tensors = tensors or {}
    alignment = metadata.get("general.alignment", 32)
    alignment = alignment if isinstance(alignment, int) and alignment > 0 else 32
    out = b"GGUF" + struct.pack(order + "IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        type_id, raw = typed(value)
        out += string(key) + struct.pack("<I", type_id) + raw
    data = b""
    for name, tensor in tensors.items():
        dims = tensor.shape[::-1]
        offset = len(data) if tensor.offset is None else tensor.offset
        out += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.ggml_type, offset)
        data += tensor.data()
        data += bytes(-len(data) % alignment)
    return out + bytes(-len(out) % alignment) + data


HIDDEN, VOCAB, HEADS, KV_HEADS, HEAD_DIM, FFN = 16, 10, 4, 2, 8, 12
EXPERTS, EXPERT_FFN, SHARED_FFN = 3, 6, 5
STATE, KEY_HEADS, VALUE_HEADS, TAPS = 4, 2, 6, 3
QUERY, KEY, VALUE = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, VALUE_HEADS * STATE
CHANNELS = 2 * KEY_HEADS * STATE + VALUE

ATTENTION = {"attn_q.weight": (QUERY, HIDDEN), "attn_k.weight": (KEY, HIDDEN), "attn_v.weight": (KEY, HIDDEN),
             "attn_output.weight": (HIDDEN, QUERY)}
QK_NORMS = {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
BIASES = {"attn_q.bias": (QUERY,), "attn_k.bias": (KEY,), "attn_v.bias": (KEY,)}
DELTA_NET = {"attn_qkv.weight": (CHANNELS, HIDDEN), "attn_gate.weight": (VALUE, HIDDEN),
             "ssm_conv1d.weight": (CHANNELS, TAPS), "ssm_alpha.weight": (VALUE_HEADS, HIDDEN),
             "ssm_beta.weight": (VALUE_HEADS, HIDDEN), "ssm_a": (VALUE_HEADS,), "ssm_dt.bias": (VALUE_HEADS,),
             "ssm_norm.weight": (STATE,), "ssm_out.weight": (HIDDEN, VALUE)}
DENSE = {"ffn_gate.weight": (FFN, HIDDEN), "ffn_up.weight": (FFN, HIDDEN), "ffn_down.weight": (HIDDEN, FFN)}
MOE = {"ffn_gate_inp.weight": (EXPERTS, HIDDEN), "ffn_gate_exps.weight": (EXPERTS, EXPERT_FFN, HIDDEN),
       "ffn_up_exps.weight": (EXPERTS, EXPERT_FFN, HIDDEN), "ffn_down_exps.weight": (EXPERTS, HIDDEN, EXPERT_FFN)}
SHARED = {"ffn_gate_inp_shexp.weight": (HIDDEN,), "ffn_gate_shexp.weight": (SHARED_FFN, HIDDEN),
          "ffn_up_shexp.weight": (SHARED_FFN, HIDDEN), "ffn_down_shexp.weight": (HIDDEN, SHARED_FFN)}
SANDWICH = {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
JOINT_GATE = {**ATTENTION, "attn_q.weight": (2 * QUERY, HIDDEN)}

# Architecture -> the tensors of one attention layer beyond its first norm.
LAYERS: dict[str, dict[str, tuple[int, ...]]] = {
    "llama": {**ATTENTION, **DENSE, "ffn_norm.weight": (HIDDEN,)},
    "qwen2": {**ATTENTION, **BIASES, **DENSE, "ffn_norm.weight": (HIDDEN,)},
    "qwen3": {**ATTENTION, **QK_NORMS, **DENSE, "ffn_norm.weight": (HIDDEN,)},
    "qwen3moe": {**ATTENTION, **QK_NORMS, **MOE, "ffn_norm.weight": (HIDDEN,)},
    "qwen35": {**JOINT_GATE, **QK_NORMS, **DENSE, "post_attention_norm.weight": (HIDDEN,)},
    "qwen35moe": {**JOINT_GATE, **QK_NORMS, **MOE, **SHARED, "post_attention_norm.weight": (HIDDEN,)},
    "gemma3": {**ATTENTION, **QK_NORMS, **DENSE, **SANDWICH, "ffn_norm.weight": (HIDDEN,)},
    "muse-glimmer": {**ATTENTION, **QK_NORMS, **DENSE, **SANDWICH, "ffn_norm.weight": (HIDDEN,),
                     "attn_gate.weight": (QUERY, HIDDEN)},
}


def model_metadata(architecture: str, num_layers: int) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "block_count": num_layers, "context_length": 64, "embedding_length": HIDDEN, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD_DIM, "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 5e5,
    }
    if "moe" in architecture:
        keys |= {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": EXPERT_FFN,
                 "expert_shared_feed_forward_length": SHARED_FFN}
    else:
        keys["feed_forward_length"] = FFN
    if architecture.startswith("qwen35"):
        keys |= {"ssm.conv_kernel": TAPS, "ssm.state_size": STATE, "ssm.group_count": KEY_HEADS,
                 "ssm.time_step_rank": VALUE_HEADS, "ssm.inner_size": VALUE, "full_attention_interval": 2,
                 "rope.dimension_count": 4, "rope.dimension_sections": [1, 1, 0, 0]}
    if architecture in ("gemma3", "muse-glimmer"):
        keys["attention.sliding_window"] = 24
    metadata: dict[str, Any] = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key}": value for key, value in keys.items()}
    return metadata | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [f"<{i}>" for i in range(VOCAB)]}


def model_tensors(architecture: str, num_layers: int) -> dict[str, Tensor]:
    """Tied; hybrids have a delta-net layer wherever (layer + 1) is odd."""
    tensors = {"token_embd.weight": Tensor((VOCAB, HIDDEN)), "output_norm.weight": Tensor((HIDDEN,))}
    for layer in range(num_layers):
        shapes = dict(LAYERS[architecture])
        if architecture.startswith("qwen35") and layer % 2 == 0:
            shapes = {name: shape for name, shape in shapes.items() if not name.startswith("attn_")} | DELTA_NET
        shapes["attn_norm.weight"] = (HIDDEN,)
        tensors |= {f"blk.{layer}.{name}": Tensor(shape) for name, shape in shapes.items()}
    return tensors

"""The tensors each architecture must have, and their shapes, derived from the hyperparameters.

Knows GGUF tensor names. Prediction blocks behind the trunk are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Protocol

import numpy as np

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.layer_types import LayerType
from sparkinfer.checkpoint.rope_params import RopeParams
from sparkinfer.errors import CheckpointError

Shape = tuple[int, ...]

QK_NORM_ARCHITECTURES = ("qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma3", "muse-glimmer")
SANDWICH_NORM_ARCHITECTURES = ("gemma3", "muse-glimmer")
ROPE_DIVISORS = "rope_freqs.weight"  # Llama 3's long-context scaling
_COMPANION = re.compile(r"(?P<owner>.+)\.(?P<kind>scale|input_scale)")


class Widths(Protocol):
    """What the shapes follow from; HParams has it all."""

    @property
    def architecture(self) -> str: ...
    @property
    def layer_types(self) -> tuple[LayerType, ...]: ...
    @property
    def num_nextn_layers(self) -> int: ...
    @property
    def rope(self) -> RopeParams: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def num_q_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def ffn_size(self) -> int: ...
    @property
    def num_experts(self) -> int: ...
    @property
    def expert_ffn_size(self) -> int: ...
    @property
    def shared_expert_ffn_size(self) -> int: ...
    @property
    def ssm_conv_kernel(self) -> int: ...
    @property
    def ssm_state_size(self) -> int: ...
    @property
    def ssm_time_step_rank(self) -> int: ...
    @property
    def ssm_conv_channels(self) -> int: ...


def check_tensor_shapes(gguf: GGUFFile, widths: Widths) -> None:
    """Raises CheckpointError naming the first tensor that is missing, of another shape, or not part of such a model."""
    expected = expected_shapes(gguf.tensors.keys(), widths)
    for name, shape in expected.items():
        found = gguf.info(name).shape
        if found != shape and not (name.endswith("ffn_gate_inp_shexp.weight") and found == (1, *shape)):
            raise CheckpointError(
                f"{gguf.path}: tensor {name!r} has shape {list(found)}, the metadata says {list(shape)}"
            )
    for name in gguf.tensors:
        if name not in expected and not _is_nextn(name, widths):
            _check_companion(gguf, name, expected, widths)
    if ROPE_DIVISORS in expected:
        divisors = gguf.dequantize(ROPE_DIVISORS)
        if not (np.isfinite(divisors) & (divisors > 0)).all():
            raise CheckpointError(f"{gguf.path}: tensor {ROPE_DIVISORS!r} holds divisors that are not above 0")


def expected_shapes(names: Collection[str], widths: Widths) -> dict[str, Shape]:
    """Tensor name -> shape of all that the model is made of; `names` decides about those a file may go without."""
    expected = {
        "token_embd.weight": (widths.vocab_size, widths.hidden_size),
        "output_norm.weight": (widths.hidden_size,),
    }
    if "output.weight" in names:
        expected["output.weight"] = expected["token_embd.weight"]
    if ROPE_DIVISORS in names and widths.architecture == "llama":
        expected[ROPE_DIVISORS] = (widths.rope.dim // 2,)
    for layer, kind in enumerate(widths.layer_types):
        prefix = f"blk.{layer}."
        fused = f"{prefix}ffn_gate_up_exps.weight" in names
        expected |= {prefix + name: shape for name, shape in _layer_shapes(widths, kind, fused)}
    return expected


def _check_companion(gguf: GGUFFile, name: str, expected: Collection[str], widths: Widths) -> None:
    """Formats without room for a factor (NVFP4) keep it in a tensor beside: one, or one per expert."""
    companion = _COMPANION.fullmatch(name)
    owner = companion["owner"] if companion else ""
    if companion is None or not {owner, f"{owner}.weight"}.intersection(expected):
        raise CheckpointError(f"{gguf.path}: tensor {name!r} is not part of a {widths.architecture!r} model")
    allowed = {1, widths.num_experts} if owner.endswith("_exps") else {1}
    found = gguf.info(name).num_elements
    if companion["kind"] == "scale" and found not in allowed:
        sizes = " or ".join(map(str, sorted(allowed)))
        raise CheckpointError(f"{gguf.path}: tensor {name!r} has {found} elements, it must have {sizes}")


def _is_nextn(name: str, widths: Widths) -> bool:
    """Whether the tensor belongs to a prediction block, which lie after the trunk."""
    block = re.match(r"blk\.(\d+)\.", name)
    num_layers = len(widths.layer_types)
    return block is not None and num_layers <= int(block[1]) < num_layers + widths.num_nextn_layers


def _layer_shapes(widths: Widths, kind: LayerType, has_fused_experts: bool) -> Iterator[tuple[str, Shape]]:
    yield "attn_norm.weight", (widths.hidden_size,)
    yield from _delta_net_shapes(widths) if kind == "gated_delta_net" else _attention_shapes(widths)
    yield from _norm_shapes(widths)
    if widths.num_experts:
        yield from _moe_shapes(widths, has_fused_experts)
    else:
        yield from _ffn_shapes("", widths.ffn_size, widths)


def _attention_shapes(widths: Widths) -> Iterator[tuple[str, Shape]]:
    hidden = widths.hidden_size
    query, key = widths.num_q_heads * widths.head_dim, widths.num_kv_heads * widths.head_dim
    has_joint_gate = bool(widths.ssm_state_size)  # hybrid models: each head's query rows, then its gate rows
    yield "attn_q.weight", (2 * query if has_joint_gate else query, hidden)
    yield "attn_k.weight", (key, hidden)
    yield "attn_v.weight", (key, hidden)
    yield "attn_output.weight", (hidden, query)
    if widths.architecture == "muse-glimmer":
        yield "attn_gate.weight", (query, hidden)
    if widths.architecture == "qwen2":
        yield "attn_q.bias", (query,)
        yield "attn_k.bias", (key,)
        yield "attn_v.bias", (key,)
    if widths.architecture in QK_NORM_ARCHITECTURES:
        yield "attn_q_norm.weight", (widths.head_dim,)
        yield "attn_k_norm.weight", (widths.head_dim,)


def _delta_net_shapes(widths: Widths) -> Iterator[tuple[str, Shape]]:
    hidden, heads, channels = widths.hidden_size, widths.ssm_time_step_rank, widths.ssm_conv_channels
    value = heads * widths.ssm_state_size
    yield "attn_qkv.weight", (channels, hidden)
    yield "attn_gate.weight", (value, hidden)
    yield "ssm_conv1d.weight", (channels, widths.ssm_conv_kernel)
    yield "ssm_alpha.weight", (heads, hidden)
    yield "ssm_beta.weight", (heads, hidden)
    yield "ssm_a", (heads,)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_norm.weight", (widths.ssm_state_size,)
    yield "ssm_out.weight", (hidden, value)


def _norm_shapes(widths: Widths) -> Iterator[tuple[str, Shape]]:
    """The norms around the feed-forward part; hybrid models call the one before it post_attention_norm."""
    if widths.ssm_state_size:
        yield "post_attention_norm.weight", (widths.hidden_size,)
        return
    yield "ffn_norm.weight", (widths.hidden_size,)
    if widths.architecture in SANDWICH_NORM_ARCHITECTURES:
        yield "post_attention_norm.weight", (widths.hidden_size,)
        yield "post_ffw_norm.weight", (widths.hidden_size,)


def _ffn_shapes(suffix: str, ffn_size: int, widths: Widths) -> Iterator[tuple[str, Shape]]:
    yield f"ffn_gate{suffix}.weight", (ffn_size, widths.hidden_size)
    yield f"ffn_up{suffix}.weight", (ffn_size, widths.hidden_size)
    yield f"ffn_down{suffix}.weight", (widths.hidden_size, ffn_size)


def _moe_shapes(widths: Widths, is_fused: bool) -> Iterator[tuple[str, Shape]]:
    """Router, experts (gate and up rows in one tensor where a converter fused them), shared expert and its gate."""
    experts, hidden, ffn_size = widths.num_experts, widths.hidden_size, widths.expert_ffn_size
    yield "ffn_gate_inp.weight", (experts, hidden)
    if is_fused:
        yield "ffn_gate_up_exps.weight", (experts, 2 * ffn_size, hidden)
    else:
        yield "ffn_gate_exps.weight", (experts, ffn_size, hidden)
        yield "ffn_up_exps.weight", (experts, ffn_size, hidden)
    yield "ffn_down_exps.weight", (experts, hidden, ffn_size)
    if widths.shared_expert_ffn_size:
        yield "ffn_gate_inp_shexp.weight", (hidden,)
        yield from _ffn_shapes("_shexp", widths.shared_expert_ffn_size, widths)

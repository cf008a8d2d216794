"""HParams: everything about a model's shape and constants that its metadata says, in our words.

Knows metadata keys; nothing of tensors beyond their names and shapes, and nothing of devices.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.layer_types import LayerType, layer_types
from sparkinfer.checkpoint.metadata import MetadataReader
from sparkinfer.checkpoint.rope_params import RopeParams
from sparkinfer.checkpoint.tensor_shapes import check_tensor_shapes
from sparkinfer.errors import CheckpointError

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma3", "muse-glimmer")
MOE_ARCHITECTURES = ("qwen3moe", "qwen35moe")
HYBRID_ARCHITECTURES = ("qwen35", "qwen35moe")
MAX_LAYERS = 1024
_OTHER_KINDS = {  # general.type -> what it is
    "adapter": "a LoRA adapter",
    "mmproj": "a vision projector (mmproj), which belongs to a model",
    "imatrix": "an importance matrix",
    "dataset": "a data set",
}
GEMMA3_27B_LAYERS = 62  # the one gemma3 that scales its scores by hidden_size / num_q_heads, not by head_dim
SOFTMAX_GATING = 1      # llama.cpp's id of the router that all supported MoE models use


@dataclass(frozen=True, slots=True, kw_only=True)
class HParams:
    """Hyperparameters of one model. Invariant: they agree with one another and with the shapes of its tensors."""

    architecture: str
    num_layers: int                     # trunk layers; next-token-prediction blocks are not counted
    num_nextn_layers: int               # prediction blocks after the trunk: blk.<num_layers> ...
    hidden_size: int
    vocab_size: int                     # rows of the embedding, padding included
    max_position: int                   # tokens of context the model was made for
    rms_norm_eps: float
    has_tied_embeddings: bool           # no output.weight: the embedding is the output head too

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    attention_scale: float              # factor of the scores before the softmax
    layer_types: tuple[LayerType, ...]  # [num_layers]
    sliding_window: int                 # positions i-w < j <= i are seen by sliding layers; 0: there are none

    rope: RopeParams

    ffn_size: int                       # dense feed-forward width; 0 where every layer is experts
    num_experts: int                    # 0: dense
    num_experts_used: int
    expert_ffn_size: int
    shared_expert_ffn_size: int         # 0: no shared expert

    ssm_conv_kernel: int                # taps of the causal convolution; all ssm_* are 0 without delta-net layers
    ssm_state_size: int                 # head width of keys and of values
    ssm_group_count: int                # key heads
    ssm_time_step_rank: int             # value heads

    logit_scale: float                  # logits are multiplied by it
    final_logit_softcapping: float      # cap * tanh(logits / cap); 0: no cap

    @classmethod
    def from_gguf(cls, gguf: GGUFFile) -> HParams:
        """Read and cross-check a model's hyperparameters.

        Raises CheckpointError naming the file and the key or tensor: an unknown architecture, a missing or
        ill-typed key, values that contradict one another, a missing tensor or one of another shape.
        """
        reader = MetadataReader(gguf.metadata, gguf.path)
        _check_is_model(gguf, reader)
        architecture = reader.text("general.architecture")
        if architecture not in ARCHITECTURES:
            shown, known = reprlib.repr(architecture), ", ".join(ARCHITECTURES)
            raise CheckpointError(f"{gguf.path}: architecture {shown} is not supported; these are: {known}")
        hparams = _read(cls, gguf, reader, architecture)
        check_tensor_shapes(gguf, hparams)
        return hparams

    @property
    def num_attention_layers(self) -> int:
        """Layers that hold keys and values."""
        return sum(kind != "gated_delta_net" for kind in self.layer_types)

    @property
    def num_recurrent_layers(self) -> int:
        return self.num_layers - self.num_attention_layers

    @property
    def ssm_conv_channels(self) -> int:
        """Channels of the convolution: queries and keys of each key head, values of each value head."""
        return (2 * self.ssm_group_count + self.ssm_time_step_rank) * self.ssm_state_size


def _check_is_model(gguf: GGUFFile, reader: MetadataReader) -> None:
    """GGUF holds other things than models; say which, rather than what they lack as a model."""
    kind = _OTHER_KINDS.get(reader.text("general.type", "model"))
    if reader.text("general.architecture", "") == "clip":
        kind = _OTHER_KINDS["mmproj"]
    if kind is None and not gguf.tensors:
        kind = "a vocabulary without tensors"
    if kind is not None:
        raise CheckpointError(f"{gguf.path}: the file is {kind}, not a model")


def _read(cls: type[HParams], gguf: GGUFFile, reader: MetadataReader, architecture: str) -> HParams:
    prefix = architecture
    num_nextn_layers = reader.integer(f"{prefix}.nextn_predict_layers", 0, high=MAX_LAYERS)
    num_layers = reader.integer(f"{prefix}.block_count", low=1 + num_nextn_layers, high=MAX_LAYERS) - num_nextn_layers
    hidden_size = reader.integer(f"{prefix}.embedding_length", low=1)
    num_q_heads = reader.uniform_integer(f"{prefix}.attention.head_count", low=1)
    head_dim = _head_dim(reader, prefix, hidden_size, num_q_heads)
    types = layer_types(reader, architecture, num_layers)
    gemma3_27b = architecture == "gemma3" and num_layers == GEMMA3_27B_LAYERS
    return cls(
        architecture=architecture,
        num_layers=num_layers,
        num_nextn_layers=num_nextn_layers,
        hidden_size=hidden_size,
        vocab_size=_vocab_size(gguf, reader, prefix),
        max_position=reader.integer(f"{prefix}.context_length", low=1),
        rms_norm_eps=reader.number(f"{prefix}.attention.layer_norm_rms_epsilon", low=0.0, high=1.0),
        has_tied_embeddings="output.weight" not in gguf.tensors,
        num_q_heads=num_q_heads,
        num_kv_heads=_num_kv_heads(reader, prefix, num_q_heads),
        head_dim=head_dim,
        attention_scale=(hidden_size / num_q_heads if gemma3_27b else head_dim) ** -0.5,
        layer_types=types,
        sliding_window=(
            reader.integer(f"{prefix}.attention.sliding_window", low=1) if "sliding_attention" in types else 0
        ),
        rope=RopeParams.from_metadata(reader, architecture, head_dim),
        **_ffn_fields(reader, architecture),
        **_ssm_fields(reader, architecture),
        logit_scale=reader.number(f"{prefix}.logit_scale", 1.0),
        final_logit_softcapping=reader.number(f"{prefix}.final_logit_softcapping", 0.0, low=0.0),
    )


def _head_dim(reader: MetadataReader, prefix: str, hidden_size: int, num_q_heads: int) -> int:
    key = f"{prefix}.attention.key_length"
    if key not in reader and hidden_size % num_q_heads:
        reader.fail(key, f"given, as {num_q_heads} heads do not divide {hidden_size} (embedding_length)")
    head_dim = reader.integer(key, hidden_size // num_q_heads, low=1, high=4096)
    if reader.integer(f"{prefix}.attention.value_length", head_dim) != head_dim:
        reader.fail(f"{prefix}.attention.value_length", f"{head_dim}, the key length")
    return head_dim


def _num_kv_heads(reader: MetadataReader, prefix: str, num_q_heads: int) -> int:
    key = f"{prefix}.attention.head_count_kv"
    value = reader.metadata.get(key)
    if prefix in HYBRID_ARCHITECTURES and isinstance(value, list):  # delta-net layers may be listed with none
        attention = [heads for heads in value if heads != 0]
        if not attention or not isinstance(attention[0], int) or any(heads != attention[0] for heads in attention):
            reader.fail(key, "one integer, the same for every attention layer")
        num_kv_heads = int(attention[0])
    else:
        num_kv_heads = reader.uniform_integer(key, num_q_heads, low=1)
    if num_kv_heads < 1 or num_q_heads % num_kv_heads:
        reader.fail(key, f"a divisor of head_count, {num_q_heads}")
    return num_kv_heads


def _vocab_size(gguf: GGUFFile, reader: MetadataReader, prefix: str) -> int:
    """Rows of the embedding, which the token list must match."""
    rows = gguf.info("token_embd.weight").shape[0]
    tokens = reader.metadata.get("tokenizer.ggml.tokens")
    if tokens is not None:
        if not isinstance(tokens, list) or len(tokens) != rows:
            reader.fail("tokenizer.ggml.tokens", f"a list of {rows} tokens, one per row of token_embd.weight")
    elif reader.integer(f"{prefix}.vocab_size", rows) != rows:
        reader.fail(f"{prefix}.vocab_size", f"{rows}, the rows of token_embd.weight")
    return rows


def _ffn_fields(reader: MetadataReader, architecture: str) -> dict[str, int]:
    prefix = architecture
    names = ("ffn_size", "num_experts", "num_experts_used", "expert_ffn_size", "shared_expert_ffn_size")
    if architecture not in MOE_ARCHITECTURES:
        if reader.integer(f"{prefix}.expert_count", 0):
            reader.fail(f"{prefix}.expert_count", "0 or absent: experts are not supported in this architecture")
        ffn_size = reader.uniform_integer(f"{prefix}.feed_forward_length", low=1)
        return dict(zip(names, (ffn_size, 0, 0, 0, 0), strict=True))
    if reader.integer(f"{prefix}.expert_gating_func", SOFTMAX_GATING) not in (0, SOFTMAX_GATING):
        reader.fail(f"{prefix}.expert_gating_func", f"{SOFTMAX_GATING} (softmax)")
    num_experts = reader.integer(f"{prefix}.expert_count", low=1, high=1 << 16)
    used = reader.integer(f"{prefix}.expert_used_count", low=1, high=num_experts)
    expert_ffn_size = reader.integer(f"{prefix}.expert_feed_forward_length", low=1)
    shared = 0
    if architecture == "qwen35moe":
        shared = reader.integer(f"{prefix}.expert_shared_feed_forward_length", expert_ffn_size, low=1)
    return dict(zip(names, (0, num_experts, used, expert_ffn_size, shared), strict=True))


def _ssm_fields(reader: MetadataReader, architecture: str) -> dict[str, int]:
    names = ("ssm_conv_kernel", "ssm_state_size", "ssm_group_count", "ssm_time_step_rank")
    if architecture not in HYBRID_ARCHITECTURES:
        return dict.fromkeys(names, 0)
    prefix = f"{architecture}.ssm"
    conv_kernel = reader.integer(f"{prefix}.conv_kernel", low=2, high=16)
    state_size = reader.integer(f"{prefix}.state_size", low=1, high=4096)
    group_count = reader.integer(f"{prefix}.group_count", low=1, high=1 << 16)
    time_step_rank = reader.integer(f"{prefix}.time_step_rank", low=1, high=1 << 16)
    if time_step_rank % group_count:
        reader.fail(f"{prefix}.time_step_rank", f"a multiple of ssm.group_count, {group_count}")
    if reader.integer(f"{prefix}.inner_size", time_step_rank * state_size) != time_step_rank * state_size:
        reader.fail(f"{prefix}.inner_size", f"time_step_rank x state_size, {time_step_rank * state_size}")
    return dict(zip(names, (conv_kernel, state_size, group_count, time_step_rank), strict=True))

"""Hyperparameters of every architecture, and what is said of files that contradict themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import ARCHITECTURES, HParams
from sparkinfer.errors import CheckpointError
from tests.checkpoint import builder
from tests.checkpoint.builder import LAYERS, Tensor, Typed, gguf_bytes, model_metadata, model_tensors


class Absent:
    """Stands for a key that is not there."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


def read(folder: Path, architecture: str, num_layers: int = 2, **changes: Any) -> HParams:
    """HParams of the tiny model; `changes` are metadata (`__` for `.`, without the architecture) or ABSENT."""
    metadata, tensors = model_metadata(architecture, num_layers), model_tensors(architecture, num_layers)
    for name, value in changes.items():
        key = name.replace("__", ".")
        key = key if key.startswith(("general.", "tokenizer.")) else f"{architecture}.{key}"
        metadata[key] = value
        if value is ABSENT:
            del metadata[key]
    return read_bytes(folder, metadata, tensors)


def read_bytes(folder: Path, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> HParams:
    path = folder / "model.gguf"
    path.write_bytes(gguf_bytes(metadata, tensors))
    return HParams.from_gguf(GGUFFile.open(path))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_common_fields(tmp_path: Path, architecture: str) -> None:
    hparams = read(tmp_path, architecture)
    assert hparams.architecture == architecture
    assert (hparams.num_layers, hparams.num_nextn_layers, hparams.max_position) == (2, 0, 64)
    assert (hparams.hidden_size, hparams.vocab_size) == (builder.HIDDEN, builder.VOCAB)
    assert (hparams.num_q_heads, hparams.num_kv_heads, hparams.head_dim) == (4, 2, 8)
    assert hparams.attention_scale == 8**-0.5
    assert hparams.has_tied_embeddings
    assert hparams.rms_norm_eps == pytest.approx(1e-6)
    assert hparams.rope.theta == 5e5
    assert hparams.rope.is_interleaved == (architecture in ("llama", "muse-glimmer"))
    assert (hparams.logit_scale, hparams.final_logit_softcapping) == (1.0, 0.0)
    assert hparams.ffn_size == (0 if "moe" in architecture else builder.FFN)


def test_architectures_are_all_in_the_builder() -> None:
    assert set(ARCHITECTURES) == set(LAYERS)


def test_experts(tmp_path: Path) -> None:
    plain, shared = read(tmp_path, "qwen3moe"), read(tmp_path, "qwen35moe")
    assert (plain.num_experts, plain.num_experts_used, plain.expert_ffn_size) == (3, 2, builder.EXPERT_FFN)
    assert (plain.shared_expert_ffn_size, shared.shared_expert_ffn_size) == (0, builder.SHARED_FFN)


def test_fused_experts_are_accepted(tmp_path: Path) -> None:
    tensors = model_tensors("qwen3moe", 1)
    gate = tensors.pop("blk.0.ffn_gate_exps.weight")
    del tensors["blk.0.ffn_up_exps.weight"]
    experts, rows, hidden = gate.shape
    tensors["blk.0.ffn_gate_up_exps.weight"] = Tensor((experts, 2 * rows, hidden))
    assert read_bytes(tmp_path, model_metadata("qwen3moe", 1), tensors).num_experts == experts


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe"])
def test_hybrid_layers(tmp_path: Path, architecture: str) -> None:
    hparams = read(tmp_path, architecture, num_layers=4)
    assert hparams.layer_types == ("gated_delta_net", "attention") * 2
    assert (hparams.num_attention_layers, hparams.num_recurrent_layers) == (2, 2)
    assert hparams.ssm_conv_kernel == builder.TAPS
    assert (hparams.ssm_state_size, hparams.ssm_group_count, hparams.ssm_time_step_rank) == (4, 2, 6)
    assert hparams.ssm_conv_channels == builder.CHANNELS
    assert (hparams.rope.dim, hparams.rope.sections) == (4, (1, 1, 0, 0))


def test_flags_override_the_interval(tmp_path: Path) -> None:
    changes = {"attention__recurrent_layers": [True, False, True, False], "full_attention_interval": 3}
    assert read(tmp_path, "qwen35", 4, **changes).layer_types == ("gated_delta_net", "attention") * 2


def test_prediction_blocks_are_not_layers(tmp_path: Path) -> None:
    hparams = read(tmp_path, "qwen35", 2, block_count=3, nextn_predict_layers=Typed("u8", 1))
    assert (hparams.num_layers, hparams.num_nextn_layers, len(hparams.layer_types)) == (2, 1, 2)


def test_gemma_alternates_five_to_one(tmp_path: Path) -> None:
    hparams = read(tmp_path, "gemma3", num_layers=7)
    assert hparams.layer_types == (*("sliding_attention",) * 5, "attention", "sliding_attention")
    assert hparams.sliding_window == 24
    assert (hparams.rope.theta, hparams.rope.sliding_theta) == (5e5, 1e4)


def test_gemma_without_a_window_is_all_global(tmp_path: Path) -> None:
    hparams = read(tmp_path, "gemma3", attention__sliding_window=ABSENT)
    assert (set(hparams.layer_types), hparams.sliding_window) == ({"attention"}, 0)


def test_the_27b_gemma_scales_by_hidden_size_per_head(tmp_path: Path) -> None:
    assert read(tmp_path, "gemma3", num_layers=62).attention_scale == (builder.HIDDEN / builder.HEADS) ** -0.5


@pytest.mark.parametrize("pattern", [3, [True, True, False, True]])
def test_window_patterns(tmp_path: Path, pattern: Any) -> None:
    hparams = read(tmp_path, "muse-glimmer", num_layers=4, attention__sliding_window_pattern=pattern)
    kinds = {True: "sliding_attention", False: "attention"}
    assert hparams.layer_types == tuple(kinds[flag] for flag in (True, True, False, True))


def test_muse_counts_every_fourth(tmp_path: Path) -> None:
    hparams = read(tmp_path, "muse-glimmer", num_layers=4, logit_scale=0.25, final_logit_softcapping=20.0)
    assert hparams.layer_types == (*("sliding_attention",) * 3, "attention")
    assert (hparams.logit_scale, hparams.final_logit_softcapping) == (0.25, 20.0)


def test_head_dim_defaults_to_hidden_size_per_head(tmp_path: Path) -> None:
    tensors = model_tensors("llama", 1)
    sizes = {"attn_q": (16, 16), "attn_output": (16, 16), "attn_k": (8, 16), "attn_v": (8, 16)}
    tensors |= {f"blk.0.{name}.weight": Tensor(shape) for name, shape in sizes.items()}
    metadata = model_metadata("llama", 1)
    del metadata["llama.attention.key_length"], metadata["llama.attention.value_length"]
    hparams = read_bytes(tmp_path, metadata, tensors)
    assert (hparams.head_dim, hparams.rope.dim) == (4, 4)


def test_an_output_head_of_its_own(tmp_path: Path) -> None:
    tensors = model_tensors("llama", 1) | {"output.weight": Tensor((builder.VOCAB, builder.HIDDEN))}
    assert not read_bytes(tmp_path, model_metadata("llama", 1), tensors).has_tied_embeddings


def test_rope_scaling(tmp_path: Path) -> None:
    assert read(tmp_path, "llama").rope.scaling_type == "none"
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 16}
    rope = read(tmp_path, "qwen3", **yarn, rope__scaling__yarn_beta_fast=16.0).rope
    assert (rope.scaling_type, rope.scaling_factor, rope.original_context) == ("yarn", 4.0, 16)
    assert (rope.yarn_beta_fast, rope.yarn_beta_slow, rope.yarn_attn_factor) == (16.0, 1.0, 1.0)
    linear = read(tmp_path, "gemma3", rope__scaling__type="linear", rope__scaling__factor=8.0).rope
    assert (linear.scaling_type, linear.scaling_factor) == ("linear", 8.0)
    assert read(tmp_path, "llama", rope__scale_linear=2.0).rope.scaling_type == "linear"


@pytest.mark.parametrize("kind", ["u8", "i8", "u16", "i16", "i32", "u64", "i64"])
def test_any_integer_width_will_do(tmp_path: Path, kind: str) -> None:
    names = ("block_count", "context_length", "embedding_length", "attention__head_count", "feed_forward_length")
    values = (2, 64, builder.HIDDEN, builder.HEADS, builder.FFN)
    widened = read(tmp_path, "llama", **{name: Typed(kind, value) for name, value in zip(names, values, strict=True)})
    assert widened == read(tmp_path, "llama")


def test_per_layer_arrays_of_one_value_will_do(tmp_path: Path) -> None:
    changes = {"attention__head_count_kv": [2, 2], "feed_forward_length": [builder.FFN] * 2}
    assert read(tmp_path, "llama", **changes) == read(tmp_path, "llama")
    assert read(tmp_path, "qwen35", attention__head_count_kv=[0, 2]) == read(tmp_path, "qwen35")


def test_flags_may_be_written_as_integers(tmp_path: Path) -> None:
    hparams = read(tmp_path, "qwen35", attention__recurrent_layers=[1, 0])
    assert hparams.layer_types == ("gated_delta_net", "attention")


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"general__architecture": "falcon"}, r"'falcon' is not supported; these are: llama, qwen2, .*muse-glim"),
    ("llama", {"general__architecture": ABSENT}, r"'general\.architecture' is missing"),
    ("llama", {"general__architecture": 3}, r"'general\.architecture' is 3; it must be a string"),
    ("llama", {"block_count": ABSENT}, r"'llama\.block_count' is missing; it must be an integer from 1 to 1024"),
    ("llama", {"block_count": Typed("u32", 2**32 - 1)}, r"'llama\.block_count' is 4294967295"),
    ("llama", {"block_count": "two"}, r"'llama\.block_count' is 'two'; it must be an integer"),
    ("llama", {"block_count": 3}, r"the model has no tensor 'blk\.2\.attn_norm\.weight'"),
    ("llama", {"embedding_length": 24}, r"'token_embd\.weight' has shape \[10, 16\], the metadata says \[10, 24\]"),
    ("llama", {"embedding_length": 0}, r"'llama\.embedding_length' is 0"),
    ("llama", {"attention__head_count": 0}, r"'llama\.attention\.head_count' is 0"),
    ("llama", {"attention__head_count": [4, 8]}, r"head_count' is \[4, 8\]; it must be one integer, the same for"),
    ("llama", {"attention__head_count_kv": 3}, r"head_count_kv' is 3; it must be a divisor of head_count, 4"),
    ("llama", {"attention__head_count_kv": 4}, r"'blk\.0\.attn_k\.weight' has shape \[16, 16\], .*\[32, 16\]"),
    ("llama", {"attention__value_length": 4}, r"value_length' is 4; it must be 8, the key length"),
    ("llama", {"attention__layer_norm_rms_epsilon": float("nan")}, r"epsilon' is nan; it must be a finite number"),
    ("llama", {"attention__layer_norm_rms_epsilon": ABSENT}, r"layer_norm_rms_epsilon' is missing"),
    ("llama", {"feed_forward_length": 13}, r"'blk\.0\.ffn_gate\.weight' has shape \[12, 16\], .*\[13, 16\]"),
    ("llama", {"expert_count": 8}, r"'llama\.expert_count' is 8; it must be 0 or absent"),
    ("llama", {"rope__dimension_count": 7}, r"dimension_count' is 7; it must be even"),
    ("llama", {"rope__dimension_count": 10}, r"dimension_count' is 10; it must be an integer from 2 to 8"),
    ("llama", {"rope__scaling__type": "longrope", "rope__scaling__factor": 2.0}, r"'none', 'linear' or 'yarn'"),
    ("llama", {"rope__freq_base": float("inf")}, r"freq_base' is inf; it must be a finite number"),
    ("llama", {"tokenizer__ggml__tokens": ["a"]}, r"tokens' is \['a'\]; it must be a list of 10 tokens"),
    ("qwen3moe", {"expert_used_count": 4}, r"expert_used_count' is 4; it must be an integer from 1 to 3"),
    ("qwen3moe", {"expert_gating_func": 2}, r"expert_gating_func' is 2; it must be 1 \(softmax\)"),
    ("qwen35", {"ssm__time_step_rank": 5}, r"time_step_rank' is 5; it must be a multiple of ssm\.group_count, 2"),
    ("qwen35", {"ssm__inner_size": 9}, r"inner_size' is 9; it must be time_step_rank x state_size, 24"),
    ("qwen35", {"ssm__state_size": ABSENT}, r"'qwen35\.ssm\.state_size' is missing"),
    ("qwen35", {"attention__recurrent_layers": [True]}, r"recurrent_layers' is \[True\]; it must be an array of at le"),
    ("qwen35", {"attention__recurrent_layers": [False, True]}, r"'blk\.0\.attn_q\.weight'"),
    ("qwen35", {"attention__head_count_kv": [[1], [2]]}, r"the same for every attention layer"),
    ("qwen35", {"rope__dimension_sections": [9, 9]}, r"dimension_sections' is \[9, 9\]; .* add up to 2"),
    ("qwen35", {"nextn_predict_layers": 2}, r"'qwen35\.block_count' is 2; it must be an integer from 3"),
    ("gemma3", {"attention__sliding_window_pattern": 0}, r"sliding_window_pattern' is 0"),
    ("gemma3", {"attention__sliding_window_pattern": ["x", "y"]}, r"sliding_window_pattern' is .* 2 booleans"),
]


@pytest.mark.parametrize(("architecture", "changes", "message"), WRONG, ids=lambda value: str(value)[:50])
def test_what_is_wrong_is_named(tmp_path: Path, architecture: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read(tmp_path, architecture, **changes)
    assert str(caught.value).startswith(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_is_checked(tmp_path: Path, architecture: str) -> None:
    """Without it, or with one more row or column, the model is refused by that tensor's name."""
    metadata, tensors = model_metadata(architecture, 2), model_tensors(architecture, 2)
    for name, tensor in tensors.items():
        rest = {other: value for other, value in tensors.items() if other != name}
        with pytest.raises(CheckpointError, match=f"no tensor '{name}'"):
            read_bytes(tmp_path, metadata, rest)
        if name == "token_embd.weight":
            continue  # its rows are the vocabulary, its columns were checked against the metadata above
        wrong = replace(tensor, shape=(*tensor.shape[:-1], tensor.shape[-1] + 1))
        with pytest.raises(CheckpointError, match=f"tensor '{name}' has shape"):
            read_bytes(tmp_path, metadata, rest | {name: wrong})


def test_the_shared_gate_may_be_a_row(tmp_path: Path) -> None:
    tensors = model_tensors("qwen35moe", 1)
    tensors["blk.0.ffn_gate_inp_shexp.weight"] = Tensor((1, builder.HIDDEN))
    assert read_bytes(tmp_path, model_metadata("qwen35moe", 1), tensors).shared_expert_ffn_size == builder.SHARED_FFN


def test_the_embedded_model(embedded_model: Path) -> None:
    hparams = HParams.from_gguf(GGUFFile.open(embedded_model))
    assert (hparams.architecture, hparams.num_layers, hparams.hidden_size) == ("llama", 30, 576)
    assert (hparams.num_q_heads, hparams.num_kv_heads, hparams.head_dim) == (9, 3, 64)
    assert (hparams.vocab_size, hparams.max_position, hparams.ffn_size) == (49152, 8192, 1536)
    assert hparams.has_tied_embeddings
    assert (hparams.rope.theta, hparams.rope.dim) == (1e5, 64)


@pytest.mark.parametrize(
    ("architecture", "extra", "message"),
    [
        ("llama", {"blk.0.attn_q.bias": (builder.QUERY,)}, "'blk.0.attn_q.bias' is not part of a 'llama' model"),
        ("llama", {"blk.2.attn_norm.weight": (16,)}, "'blk.2.attn_norm.weight' is not part of"),
        ("llama", {"rope_freqs.weight": (3,)}, r"'rope_freqs.weight' has shape \[3\], the metadata says \[4\]"),
        ("llama", {"rope_freqs.weight": (4,)}, "'rope_freqs.weight' holds divisors that are not above 0"),
        ("qwen3", {"rope_freqs.weight": (4,)}, "'rope_freqs.weight' is not part of a 'qwen3' model"),
        ("qwen3", {"blk.0.attn_q.scale": (7,)}, "'blk.0.attn_q.scale' has 7 elements, it must have 1"),
        ("qwen3", {"blk.0.attn_norm.scale": (2, 2)}, "'blk.0.attn_norm.scale' has 4 elements, it must have 1"),
        ("qwen3moe", {"blk.0.ffn_up_exps.scale": (2,)}, "ffn_up_exps.scale' has 2 elements, it must have 1 or 3"),
        ("qwen3moe", {"blk.0.attn_q.scale": (3,)}, "'blk.0.attn_q.scale' has 3 elements, it must have 1"),
        ("qwen3", {"blk.0.zorp.scale": (1,)}, "'blk.0.zorp.scale' is not part of"),
        ("qwen3", {"scale": (1,)}, "'scale' is not part of"),
    ],
)
def test_a_tensor_that_does_not_belong_is_named(
    tmp_path: Path, architecture: str, extra: dict[str, tuple[int, ...]], message: str
) -> None:
    tensors = model_tensors(architecture, 2) | {name: Tensor(shape) for name, shape in extra.items()}
    with pytest.raises(CheckpointError, match=message):
        read_bytes(tmp_path, model_metadata(architecture, 2), tensors)


def test_tensors_that_may_be_there(tmp_path: Path) -> None:
    names = {"blk.0.attn_q.scale": (1,), "blk.0.ffn_up_exps.scale": (3,), "blk.1.ffn_up_exps.scale": (1, 1),
             "blk.1.attn_k.input_scale": (5,), "output.weight": (builder.VOCAB, builder.HIDDEN),
             "blk.2.nextn.eh_proj.weight": (16, 32)}
    tensors = model_tensors("qwen3moe", 2) | {name: Tensor(shape) for name, shape in names.items()}
    metadata = model_metadata("qwen3moe", 3) | {"qwen3moe.nextn_predict_layers": 1}
    assert not read_bytes(tmp_path, metadata, tensors).has_tied_embeddings
    divisors = Tensor((4,), raw=np.array([1, 1, 2, 8], "<f4").tobytes())
    read_bytes(tmp_path, model_metadata("llama", 2), model_tensors("llama", 2) | {"rope_freqs.weight": divisors})

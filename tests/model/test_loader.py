"""What the loader takes, refuses and skips."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.checkpoint.tensor_shapes import expected_shapes
from sparkinfer.errors import CheckpointError
from sparkinfer.model.architectures import ARCHITECTURES as BUILDERS
from sparkinfer.model.registry import Model, load_model
from tests.model.driver import CPU, run_chunks
from tests.model.tiny import ARCHITECTURES

PathOf = Callable[[str], Path]


class EditedGGUF:
    """A checkpoint with some tensors replaced, added or (None) left out."""

    def __init__(self, path: Path, edits: dict[str, np.ndarray | None]) -> None:
        self.original = GGUFFile.open(path)
        self.path = self.original.path
        self.edits = edits
        template = next(iter(self.original.tensors.values()))
        self.tensors = {name: info for name, info in self.original.tensors.items() if name not in edits}
        for name, values in edits.items():
            if values is not None:
                self.tensors[name] = dataclasses.replace(
                    template, name=name, shape=values.shape, num_bytes=values.nbytes
                )

    def dequantize(self, name: str) -> np.ndarray:
        values = self.edits.get(name)
        return self.original.dequantize(name) if values is None else values.astype(np.float32)


def load_edited(path: Path, edits: dict[str, np.ndarray | None], **changes: int) -> Model:
    hparams = dataclasses.replace(HParams.from_gguf(GGUFFile.open(path)), **changes)
    return load_model(EditedGGUF(path, edits), hparams, CPU, lambda done, total: None)


def logits_of(model: Model) -> torch.Tensor:
    return run_chunks(model, [3, 1, 4, 1, 5, 9, 2, 6], 8)


def values_of(path: Path, name: str) -> np.ndarray:
    return GGUFFile.open(path).dequantize(name)


def test_attribute_paths_are_gguf_names(tiny_model: Callable[[str], Model], tiny_path: PathOf) -> None:
    model, path = tiny_model("qwen35moe"), tiny_path("qwen35moe")
    np.testing.assert_array_equal(model.output_norm.weight, values_of(path, "output_norm.weight"))
    np.testing.assert_array_equal(model.blk[3].mixer.attn_k.weight, values_of(path, "blk.3.attn_k.weight"))
    np.testing.assert_array_equal(model.blk[0].mixer.ssm_a, values_of(path, "blk.0.ssm_a"))
    np.testing.assert_array_equal(
        model.blk[1].feed_forward.ffn_up_exps.weight, values_of(path, "blk.1.ffn_up_exps.weight")
    )


def test_tied_head_is_the_embedding_itself(tiny_model: Callable[[str], Model]) -> None:
    tied, untied = tiny_model("llama"), tiny_model("qwen35moe")
    assert tied.output.weight.data_ptr() == tied.token_embd.weight.data_ptr()
    assert untied.output.weight.data_ptr() != untied.token_embd.weight.data_ptr()


def test_fused_weights_are_not_held_twice(tiny_model: Callable[[str], Model]) -> None:
    attention = tiny_model("llama").blk[0].mixer
    storages = {p.weight.untyped_storage().data_ptr() for p in (attention.attn_q, attention.attn_k, attention.attn_v)}
    assert len(storages) == 1


def test_progress_reaches_the_total(tiny_path: PathOf) -> None:
    gguf = GGUFFile.open(tiny_path("qwen2"))
    calls: list[tuple[int, int]] = []
    load_model(gguf, HParams.from_gguf(gguf), CPU, lambda done, total: calls.append((done, total)))
    total = sum(info.num_bytes for info in gguf.tensors.values())
    assert calls == sorted(calls)
    assert len(calls) == len(gguf.tensors)
    assert calls[-1] == (total, total)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"blk.1.attn_k.weight": None}, "tensor 'blk.1.attn_k.weight' is missing; expected shape (128, 256)"),
        (
            {"blk.0.ffn_up.weight": np.zeros((256, 128), np.float32)},
            "tensor 'blk.0.ffn_up.weight' has shape (256, 128); expected (256, 256)",
        ),
    ],
)
def test_a_wrong_tensor_is_named(edits: dict[str, np.ndarray | None], message: str, tiny_path: PathOf) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_edited(tiny_path("llama"), edits)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.attn_k.weight", "blk.0.ffn_norm.weight"])
def test_a_single_value_that_is_not_finite_is_found(name: str, value: float, tiny_path: PathOf) -> None:
    path = tiny_path("llama")
    values = values_of(path, name).copy()
    values.flat[-3] = value
    with pytest.raises(CheckpointError, match=rf"tensor '{name}' holds values that are not finite"):
        load_edited(path, {name: values})


def test_values_near_the_largest_float_are_finite(tiny_path: PathOf) -> None:
    path, name = tiny_path("llama"), "output_norm.weight"
    values = np.full_like(values_of(path, name), np.finfo(np.float32).max)
    assert np.array_equal(load_edited(path, {name: values}).output_norm.weight, values)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_models_are_made_of_the_tensors_that_a_checkpoint_is_checked_for(architecture: str, tiny_path: PathOf) -> None:
    gguf = GGUFFile.open(tiny_path(architecture))
    hparams = HParams.from_gguf(gguf)
    names = {*gguf.tensors, "rope_freqs.weight", "output.weight"}
    untied = dataclasses.replace(hparams, has_tied_embeddings=False)
    model = BUILDERS[architecture](untied, names, CPU)
    shapes = {name: getattr(owner, attribute).shape for name, owner, attribute in model.unloaded_tensors()}
    expected = expected_shapes(names, untied)
    assert set(shapes) == set(expected)
    for name, shape in shapes.items():
        assert np.prod(shape) == np.prod(expected[name]), name


def test_an_unknown_architecture_is_named(tiny_path: PathOf) -> None:
    with pytest.raises(CheckpointError, match="architecture 'mamba' is not supported; known: gemma3, llama"):
        load_edited(tiny_path("llama"), {}, architecture="mamba")


def test_prediction_blocks_are_skipped(tiny_path: PathOf) -> None:
    path = tiny_path("qwen35")
    extra = {
        "blk.2.nextn.eh_proj.weight": np.zeros((256, 512), np.float32),
        "blk.2.attn_norm.weight": np.zeros(256, np.float32),
    }
    model = load_edited(path, extra, num_nextn_layers=1)
    torch.testing.assert_close(logits_of(model), logits_of(load_edited(path, {})), rtol=0, atol=0)


def test_scale_companions_multiply(tiny_path: PathOf) -> None:
    path, name = tiny_path("qwen35moe"), "blk.0.ffn_down_exps"
    exps = values_of(path, f"{name}.weight")
    factors = np.linspace(0.5, 2.0, len(exps), dtype=np.float32)
    edits = {
        f"{name}.weight": exps / factors[:, None, None],
        f"{name}.scale": factors,
        "blk.3.attn_output.weight": values_of(path, "blk.3.attn_output.weight") / 4,
        "blk.3.attn_output.scale": np.array([4.0], np.float32),
        "blk.3.attn_output.input_scale": np.array([7.0], np.float32),
    }
    expected = logits_of(load_edited(path, {}))
    torch.testing.assert_close(logits_of(load_edited(path, edits)), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("architecture", ["qwen35moe", "qwen3moe"])
def test_fused_experts_are_accepted(architecture: str, tiny_path: PathOf) -> None:
    path = tiny_path(architecture)
    edits: dict[str, np.ndarray | None] = {}
    for layer in range(HParams.from_gguf(GGUFFile.open(path)).num_layers):
        gate, up = f"blk.{layer}.ffn_gate_exps.weight", f"blk.{layer}.ffn_up_exps.weight"
        fused = np.concatenate((values_of(path, gate), values_of(path, up)), axis=1)
        edits |= {f"blk.{layer}.ffn_gate_up_exps.weight": fused, gate: None, up: None}
    torch.testing.assert_close(
        logits_of(load_edited(path, edits)), logits_of(load_edited(path, {})), rtol=0, atol=0
    )


def test_half_precision_norms_are_accepted(tiny_path: PathOf) -> None:
    path, name = tiny_path("llama"), "output_norm.weight"
    model = load_edited(path, {name: values_of(path, name).astype(np.float16)})
    assert model.output_norm.weight.dtype == torch.float32
    assert torch.isfinite(logits_of(model)).all()


def test_shared_gate_may_have_a_second_axis(tiny_path: PathOf) -> None:
    path, name = tiny_path("qwen35moe"), "blk.0.ffn_gate_inp_shexp.weight"
    model = load_edited(path, {name: values_of(path, name)[None]})
    torch.testing.assert_close(logits_of(model), logits_of(load_edited(path, {})), rtol=0, atol=0)


def test_rope_divisors_stretch_positions(tiny_path: PathOf) -> None:
    """Halving every frequency is the same as linear scaling by two."""
    path = tiny_path("llama")
    divided = load_edited(path, {"rope_freqs.weight": np.full(32, 2.0, np.float32)})
    rope = HParams.from_gguf(GGUFFile.open(path)).rope
    scaled = load_edited(path, {}, rope=dataclasses.replace(rope, scaling_type="linear", scaling_factor=2.0))
    torch.testing.assert_close(logits_of(divided), logits_of(scaled), rtol=0, atol=1e-5)
    assert (logits_of(divided) - logits_of(load_edited(path, {}))).abs().max() > 0.1

"""Which checkpoints the decode kernels can run, and if not, why. Knows names and shapes; reads no weights.

Every type is read: those that the kernels do not know become f16 at load.
"""

from __future__ import annotations

from sparkinfer.checkpoint.ggml_type import GGMLType
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma3", "muse-glimmer")


def why_not_covered(gguf: GGUFFile, hparams: HParams) -> str | None:
    """None where the decode kernels cover the checkpoint, else the first reason why they do not."""
    return _unfit_architecture(hparams) or _unfit_sizes(hparams) or _unfit_tensors(gguf, hparams)


def _unfit_architecture(hparams: HParams) -> str | None:
    if hparams.architecture not in ARCHITECTURES:
        return f"architecture {hparams.architecture!r}"
    return None


def _unfit_sizes(hparams: HParams) -> str | None:
    head_dim, state = hparams.head_dim, hparams.ssm_state_size
    if head_dim & (head_dim - 1) or head_dim < 16:
        return f"head_dim {head_dim}"
    if state and (state & (state - 1) or state < 16 or hparams.ssm_conv_kernel != 4):
        return f"delta-net heads of {state} with {hparams.ssm_conv_kernel} taps"
    for name in ("hidden_size", "ffn_size", "expert_ffn_size", "shared_expert_ffn_size"):
        if getattr(hparams, name) % 32:
            return f"{name} {getattr(hparams, name)}, not a multiple of 32"
    return None


def _unfit_tensors(gguf: GGUFFile, hparams: HParams) -> str | None:
    is_partial = hparams.rope.scaling_type == "yarn" and hparams.rope.dim < hparams.head_dim
    if is_partial and not any(name.endswith("attn_q_norm.weight") for name in gguf.tensors):
        return "YaRN on a part of each head, without norms to take its factor"
    for name in gguf.tensors:
        owner = gguf.tensors.get(name.removesuffix(".scale") + ".weight") if name.endswith(".scale") else None
        if owner is not None and owner.ggml_type != GGMLType.NVFP4:
            return f"{owner.name} in {owner.ggml_type.name} with a factor beside it"
    return None

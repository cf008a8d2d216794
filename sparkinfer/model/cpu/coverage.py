"""Which checkpoints the CPU kernels run on this machine, and if not, why. Knows sizes; reads no weights."""

from __future__ import annotations

from kernels.cpu.attention import MAX_QUERIES
from kernels.cpu.delta_rule import TAPS
from kernels.cpu.dot import dot_instruction
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.cpu.weights import kind_of

LANES, BLOCK = 16, 32
F32_BYTES = 4


def why_not_covered(hparams: HParams) -> str | None:
    """None where the kernels cover the model, else the first reason why they do not."""
    if dot_instruction() is None:
        return "this CPU has neither AVX-512 VNNI nor AVX2 with FMA and F16C"
    if hparams.head_dim % BLOCK:
        return f"head_dim {hparams.head_dim}, not a multiple of {BLOCK}"
    group = hparams.num_q_heads // hparams.num_kv_heads
    if group > MAX_QUERIES:
        return f"{group} query heads share a kv head, more than {MAX_QUERIES}"
    for name in ("hidden_size", "ffn_size", "expert_ffn_size", "shared_expert_ffn_size", "ssm_state_size"):
        if getattr(hparams, name) % BLOCK:
            return f"{name} {getattr(hparams, name)}, not a multiple of {BLOCK}"
    if hparams.ssm_state_size and (hparams.ssm_conv_kernel != TAPS or hparams.ssm_conv_channels % LANES):
        return f"{hparams.ssm_conv_channels} channels of {hparams.ssm_conv_kernel} convolution taps"
    return None


def packed_bytes(gguf: GGUFFile) -> int:
    """What the weights take once they are packed: as in the file, but f32 where the kernels do not know a type."""
    return sum(
        info.num_elements * F32_BYTES if len(info.shape) > 1 and kind_of(gguf, name) == "f32" else info.num_bytes
        for name, info in gguf.tensors.items()
    )

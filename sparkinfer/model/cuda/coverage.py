"""Which checkpoints the decode kernels can run, and if not, why. Knows names, types and shapes; reads no weights."""

from __future__ import annotations

from kernels.quant_format import QuantFormat
from sparkinfer.checkpoint.ggml_type import GGMLType
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.checkpoint.rope_params import RopeParams

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe", "qwen35", "qwen35moe")
QUANTISED = frozenset(int(kind) for kind in QuantFormat if kind != QuantFormat.F32)

# Matrices whose input the kernels keep in f32 too, so that they may be stored in any type; the rest must be quantised.
ANY_TYPE = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_alpha.weight", "ssm_beta.weight")
MATRICES = (
    "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "attn_qkv.weight", "attn_gate.weight",
    "ssm_out.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight", "ffn_gate_exps.weight",
    "ffn_up_exps.weight", "ffn_gate_up_exps.weight", "ffn_down_exps.weight", "ffn_gate_shexp.weight",
    "ffn_up_shexp.weight", "ffn_down_shexp.weight",
)


def why_not_covered(gguf: GGUFFile, hparams: HParams) -> str | None:
    """None where the decode kernels cover the checkpoint, else the first reason why they do not."""
    return _unfit_architecture(hparams) or _unfit_sizes(hparams) or _unfit_tensors(gguf, hparams)


def _unfit_architecture(hparams: HParams) -> str | None:
    if hparams.architecture not in ARCHITECTURES:
        return f"architecture {hparams.architecture!r}"
    if "sliding_attention" in hparams.layer_types:
        return "sliding-window layers"
    if hparams.logit_scale != 1.0 or hparams.final_logit_softcapping:
        return "scaled or capped logits"
    if abs(hparams.attention_scale * hparams.head_dim**0.5 - 1.0) > 1e-6:
        return "attention scores with a scale of their own"
    if hparams.rope.scaling_type == "yarn":
        return "YaRN rotary scaling"
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
    if hparams.shared_expert_ffn_size not in (0, hparams.expert_ffn_size):
        return f"a shared expert of width {hparams.shared_expert_ffn_size} beside {hparams.expert_ffn_size}"
    return None


def _unfit_tensors(gguf: GGUFFile, hparams: HParams) -> str | None:
    names = {f"blk.{layer}.{matrix}" for layer in range(hparams.num_layers) for matrix in MATRICES}
    for name in [*sorted(names & gguf.tensors.keys()), "token_embd.weight", "output.weight"]:
        if name not in gguf.tensors:
            continue
        kind = gguf.tensors[name].ggml_type
        if int(kind) not in QUANTISED:
            return f"{name} in {GGMLType(kind).name}"
    for layer in range(hparams.num_layers):
        for gate, up in (("ffn_gate", "ffn_up"), ("ffn_gate_exps", "ffn_up_exps"), ("ffn_gate_shexp", "ffn_up_shexp")):
            pair = [gguf.tensors.get(f"blk.{layer}.{name}.weight") for name in (gate, up)]
            if pair[0] and pair[1] and pair[0].ggml_type != pair[1].ggml_type:
                return f"{gate} and {up} of layer {layer} in two types"
    return None


def is_permuted(rope: RopeParams) -> bool:
    """Whether query and key rows are reordered at load: the kernels rotate halves, the file pairs neighbours."""
    return rope.is_interleaved

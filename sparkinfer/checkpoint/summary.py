"""Describes a model file: the facts that `python -m sparkinfer.checkpoint` prints, as plain values.

Knows no layout of output beyond the names of the facts.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.checkpoint.memory_plan import MemoryPlan, gpu_memory_bytes, host_memory_bytes, is_nextn, plan_memory

# What a chat template contains -> how its model writes tool calls; the first that matches.
_TOOL_MARKERS = (
    ("<function=", "XML functions in <tool_call>"),
    ("<tool_call>", "JSON in <tool_call>"),
    ("[TOOL_CALLS]", "JSON after [TOOL_CALLS]"),
    ("<|python_tag|>", "JSON after <|python_tag|>"),
    ("tools", "declared in the template, in a style unknown here"),
)


def summarize(gguf: GGUFFile, hparams: HParams, num_tokens: int, num_seqs: int) -> dict[str, Any]:
    """All facts, ready for JSON; memory is for `num_seqs` sequences of `num_tokens` tokens each. Sizes are in bytes."""
    plan = plan_memory(gguf, hparams, num_tokens, num_seqs)
    return {
        "files": [str(path) for path in gguf.paths],
        "name": gguf.metadata.get("general.name"),
        "architecture": hparams.architecture,
        "parameters": sum(info.num_elements for info in gguf.tensors.values()),
        "context_length": hparams.max_position,
        "layers": dict(Counter(hparams.layer_types)) | {"next_token_prediction": hparams.num_nextn_layers},
        "tokenizer": _tokenizer(gguf, hparams),
        "tensors": _tensor_classes(gguf, hparams),
        "memory": {
            "context": num_tokens,
            "sequences": num_seqs,
            "weights": plan.weights_bytes,
            "weights_cpu": plan.weights_cpu_bytes,
            "weights_f32": plan.weights_f32_bytes,
            "kv_f32": plan.kv_f32_bytes,
            "kv_f16": plan.kv_f16_bytes,
            "kv_bf16": plan.kv_bf16_bytes,
            "kv_int8": plan.kv_int8_bytes,
            "recurrent_state": plan.state_bytes,
            "total_bf16": plan.total_bf16_bytes,
            "total_int8": plan.total_int8_bytes,
            "total_cpu": plan.total_cpu_bytes,
        },
        "machine": _machine(plan),
    }


def tool_style(template: str) -> str:
    """How a model with this chat template writes tool calls, by the markers in the text.

    >>> tool_style("{% for m in messages %}{{ m.content }}{% endfor %}")
    'none'
    """
    return next((style for marker, style in _TOOL_MARKERS if marker in template), "none")


def _machine(plan: MemoryPlan) -> list[dict[str, Any]]:
    """Each place where the model could be served, by what it would take there."""
    places = [("host", host_memory_bytes(), plan.total_cpu_bytes, plan.total_cpu_int8_bytes)]
    places += [
        (name, size, plan.total_bf16_bytes, plan.total_int8_bytes) for name, size in gpu_memory_bytes().items()
    ]
    return [
        {"name": name, "bytes": size, "needs": needs, "fits": needs <= size, "fits_int8": needs_int8 <= size}
        for name, size, needs, needs_int8 in places
    ]


def _tokenizer(gguf: GGUFFile, hparams: HParams) -> dict[str, Any]:
    template = gguf.metadata.get("tokenizer.chat_template")
    return {
        "model": gguf.metadata.get("tokenizer.ggml.model"),
        "pre": gguf.metadata.get("tokenizer.ggml.pre"),
        "vocab_size": hparams.vocab_size,
        "has_chat_template": isinstance(template, str),
        "tool_calls": tool_style(template) if isinstance(template, str) else "none",
    }


def _tensor_classes(gguf: GGUFFile, hparams: HParams) -> list[dict[str, Any]]:
    """One entry per kind of tensor (its name without the block number) and element type, in file order."""
    classes: dict[tuple[str, str], list[int]] = {}
    for info in gguf.tensors.values():
        kind = info.name.split(".", 2)[-1] if info.name.startswith("blk.") else info.name
        if is_nextn(info.name, hparams):
            kind = f"nextn {kind.removeprefix('nextn.')}"
        classes.setdefault((kind.removesuffix(".weight"), info.ggml_type.name), []).append(info.num_bytes)
    return [
        {"class": kind, "type": ggml_type, "count": len(sizes), "bytes": sum(sizes)}
        for (kind, ggml_type), sizes in classes.items()
    ]

"""The documents of Ollama's GET routes and of /api/show. Knows no process: the facts arrive as a ModelInfo."""

from __future__ import annotations

from typing import Any

from sparkinfer.api.model_facts import capabilities, digest, parameter_size, timestamp
from sparkinfer.api.models import ModelInfo

# Clients ask whether the server is new enough for tools and thinking, and read each part as a number.
VERSION = "0.13.5"
NEVER = "9999-12-31T23:59:59Z"  # the model stays loaded


def version_document() -> dict[str, Any]:
    """GET /api/version"""
    return {"version": VERSION}


def tags_document(info: ModelInfo) -> dict[str, Any]:
    """GET /api/tags: the models that there are, which is one."""
    return {"models": [_entry(info) | {"modified_at": timestamp(info.created)}]}


def ps_document(info: ModelInfo) -> dict[str, Any]:
    """GET /api/ps: the models that are loaded."""
    size_vram = info.num_bytes if info.is_on_gpu else 0
    return {
        "models": [
            _entry(info) | {"expires_at": NEVER, "size_vram": size_vram, "context_length": info.max_model_len}
        ]
    }


def show_document(info: ModelInfo) -> dict[str, Any]:
    """POST /api/show. The context length is the one that is served."""
    defaults = info.sampling_defaults
    return {
        "license": "",
        "modelfile": f"FROM {_name(info)}",
        "parameters": f"temperature {defaults.temperature:g}\ntop_k {defaults.top_k}\ntop_p {defaults.top_p:g}",
        "template": "{{ .Prompt }}",  # what Ollama says where the template is the model file's own
        "details": _details(info),
        "model_info": {
            "general.architecture": info.architecture,
            **info.metadata,
            "general.parameter_count": info.num_parameters,
            f"{info.architecture}.context_length": info.max_model_len,
            f"{info.architecture}.vocab_size": info.vocab_size,
        },
        "capabilities": capabilities(info),
        "modified_at": timestamp(info.created),
    }


def _name(info: ModelInfo) -> str:
    return info.model if ":" in info.model else f"{info.model}:latest"


def _entry(info: ModelInfo) -> dict[str, Any]:
    return {
        "name": _name(info),
        "model": _name(info),
        "size": info.num_bytes,
        "digest": digest(info),
        "details": _details(info),
    }


def _details(info: ModelInfo) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": parameter_size(info),
        "quantization_level": info.quantization or "unknown",
    }

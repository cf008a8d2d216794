"""LM Studio's lists of models, version 0 and 1. Knows no process: the facts arrive as a ModelInfo."""

from __future__ import annotations

from typing import Any

from sparkinfer.api.model_facts import parameter_size
from sparkinfer.api.models import ModelInfo

PUBLISHER = "sparkinfer"


def v0_models(info: ModelInfo) -> dict[str, Any]:
    """GET /api/v0/models"""
    return {"object": "list", "data": [v0_model(info)]}


def v0_model(info: ModelInfo) -> dict[str, Any]:
    """GET /api/v0/models/{id}"""
    return {
        "id": info.model,
        "object": "model",
        "type": "llm",
        "publisher": PUBLISHER,
        "arch": info.architecture,
        "compatibility_type": "gguf",
        "quantization": info.quantization or "unknown",
        "state": "loaded",
        "max_context_length": info.max_model_len,
        "loaded_context_length": info.max_model_len,
        "capabilities": ["tool_use"],
    }


def v1_models(info: ModelInfo) -> dict[str, Any]:
    """GET /api/v1/models"""
    bits = round(8 * info.num_bytes / info.num_parameters, 2) if info.num_parameters else None
    reasoning = {"reasoning": {"allowed_options": ["off", "on"], "default": "on"}} if info.reasoning else {}
    model = {
        "type": "llm",
        "publisher": PUBLISHER,
        "key": info.model,
        "display_name": info.model,
        "architecture": info.architecture,
        "quantization": {"name": info.quantization, "bits_per_weight": bits},
        "size_bytes": info.num_bytes,
        "params_string": parameter_size(info) or None,
        "loaded_instances": [{"id": info.model, "config": {"context_length": info.max_model_len}}],
        "max_context_length": info.max_model_len,
        "format": "gguf",
        "capabilities": {"vision": False, "trained_for_tool_use": True, **reasoning},
        "description": None,
    }
    return {"models": [model]}

"""The model as Anthropic's clients list it. Knows no process: the facts arrive as a ModelInfo."""

from __future__ import annotations

from typing import Any

from sparkinfer.api.model_facts import timestamp
from sparkinfer.api.models import ModelInfo


def models_page(info: ModelInfo) -> dict[str, Any]:
    """GET /v1/models as such a client, which says its API's version, wants it."""
    return {"data": [model_object(info)], "has_more": False, "first_id": info.model, "last_id": info.model}


def model_object(info: ModelInfo) -> dict[str, Any]:
    """The one model."""
    return {
        "type": "model",
        "id": info.model,
        "display_name": info.model,
        "created_at": timestamp(info.created),
        "lifecycle": "active",
        "max_input_tokens": info.max_model_len,
        "max_tokens": info.max_output_tokens,
    }

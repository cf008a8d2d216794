"""The documents of GET /v1/models: OpenRouter's provider schema 2.4, bare or with what other clients look for.

Knows no process: the facts arrive as a ModelInfo, what the operator publishes as a PublishConfig.
"""

from __future__ import annotations

from typing import Any

from sparkinfer.api.models import MAX_CHOICES, MAX_STOPS, MAX_TOP_LOGPROBS, ModelInfo
from sparkinfer.config import PublishConfig
from sparkinfer.errors import RequestError

SCHEMA_VERSION = "2.4"


class ModelsDocument:
    """The one model that is served, as a list and alone."""

    def __init__(self, publish: PublishConfig, max_queue_depth: int) -> None:
        """max_queue_depth: requests taken at once, 0 for any number."""
        self._publish = publish
        self._max_queue_depth = max_queue_depth

    def list(self, info: ModelInfo, is_ready: bool) -> dict[str, Any]:
        """The body of GET /v1/models."""
        return {"object": "list", "data": [self._model(info, is_ready)]}

    def find(self, info: ModelInfo, model_id: str, is_ready: bool) -> dict[str, Any]:
        """The body of GET /v1/models/{id}; RequestError(404) for any other id."""
        if model_id != info.model:
            raise RequestError(
                404, f"The model {model_id[:128]!r} does not exist; this server has {info.model!r}",
                param="model", code="model_not_found",
            )  # fmt: skip
        return self._model(info, is_ready)

    def _model(self, info: ModelInfo, is_ready: bool) -> dict[str, Any]:
        provider = self._provider(info, is_ready)
        return provider if self._publish.openrouter_provider else provider | self._extensions(info)

    def _provider(self, info: ModelInfo, is_ready: bool) -> dict[str, Any]:
        """The fields of the closed schema; prices and capacities only where they are set."""
        publish = self._publish
        text_in = {
            "type": "text",
            "supported_inputs": {"max_context_length": {"value": info.max_model_len, "unit": "token"}},
            **_price("prompt", publish.prompt_price_usd),
            **_capacity([("prompt", "token", publish.prompt_tokens_per_minute)]),
        }
        text_out = {
            "type": "text",
            "streaming": True,
            "max_length": {"value": info.max_output_tokens, "unit": "token"},
            "supported_parameters": _parameters(info),
            **_price("completion", publish.completion_price_usd),
            **_capacity([("completion", "token", publish.completion_tokens_per_minute)]),
        }
        concurrency = {"type": "concurrency", "unit": "request", "value": self._max_queue_depth}
        capacity = _capacity(
            [("request", "request", publish.requests_per_minute)], [concurrency] if self._max_queue_depth else []
        )
        return {
            "schema_version": SCHEMA_VERSION,
            "id": info.model,
            "name": info.model,
            "created": info.created,
            "hugging_face_id": publish.hugging_face_id,
            "quantization": publish.quantization or info.quantization,
            "is_ready": is_ready,
            "input_modalities": [text_in],
            "output_modalities": [text_out],
            **capacity,
        }

    def _extensions(self, info: ModelInfo) -> dict[str, Any]:
        """What OpenAI's clients need and others look for; the context length stands under every name in use."""
        length = info.max_model_len
        prices = {"prompt": self._publish.prompt_price_usd, "completion": self._publish.completion_price_usd}
        extensions: dict[str, Any] = {
            "object": "model",
            "owned_by": "sparkinfer",
            "architecture": info.architecture,
            "context_length": length,
            "max_model_len": length,
            "max_output_length": info.max_output_tokens,
            "meta": {"n_ctx": length, "n_vocab": info.vocab_size},
            "supported_sampling_parameters": [*_parameters(info), "top_k", "min_p", "repetition_penalty"],
            "supported_features": ["tools", "json_mode", "structured_outputs"] + ["reasoning"] * info.reasoning,
        }
        if any(prices.values()):
            extensions["pricing"] = {kind: price for kind, price in prices.items() if price}
        return extensions


def _price(kind: str, cost_usd: str) -> dict[str, Any]:
    """A string, so that no reader rounds it."""
    return {"pricing": [{"type": kind, "unit": "token", "cost_usd": cost_usd}]} if cost_usd else {}


def _capacity(per_minute: list[tuple[str, str, int]], others: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    entries: list[dict[str, Any]] = [
        {"type": kind, "unit": unit, "per": "minute", "value": value} for kind, unit, value in per_minute if value
    ]
    entries += others or []
    return {"capacity": entries} if entries else {}


def _parameters(info: ModelInfo) -> dict[str, Any]:
    def between(low: float, high: float) -> dict[str, Any]:
        return {"type": "range", "min": low, "max": high}

    parameters: dict[str, Any] = {
        "temperature": between(0, 2),
        "top_p": between(0, 1),
        "max_tokens": {"type": "integer", "min": 1, "max": info.max_output_tokens, "unit": "token"},
        "stop": {"type": "array", "max_items": MAX_STOPS},
        "seed": {"type": "unknown"},
        "presence_penalty": between(-2, 2),
        "frequency_penalty": between(-2, 2),
        "logprobs": {"type": "boolean"},
        "top_logprobs": {"type": "integer", "min": 0, "max": MAX_TOP_LOGPROBS},
        "logit_bias": {"type": "unknown"},
        "n": {"type": "integer", "min": 1, "max": MAX_CHOICES},
        "tools": {"type": "boolean"},
        "structured_outputs": {"type": "boolean"},
    }
    if info.reasoning:
        parameters["reasoning"] = {"type": "boolean"}
    return parameters

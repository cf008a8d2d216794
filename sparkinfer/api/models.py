"""What the API says about the served model, and the documents of GET /v1/models and GET /v1/info.

Knows no process: the facts arrive as one ModelInfo.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sparkinfer.errors import RequestError

MAX_CHOICES = 8
MAX_STOPS = 4
MAX_TOP_LOGPROBS = 20
SCHEMA_VERSION = "2.4"  # of OpenRouter's provider document, whose fields the list carries


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a request that omits a control gets; the model file may say so, else OpenAI's own defaults."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the loaded model, as the service publishes them."""

    model: str  # the advertised id
    max_model_len: int  # tokens, prompt and output together
    max_output_tokens: int  # tokens, cap of one answer
    vocab_size: int
    architecture: str = ""
    quantization: str | None = None
    created: int = 0  # Unix time
    sampling_defaults: SamplingDefaults = SamplingDefaults()


def model_info_from_json(text: str | bytes) -> ModelInfo:
    """Decode the facts that the service publishes; keys this class does not name are ignored."""
    return msgspec.json.decode(text, type=ModelInfo)


def model_document(info: ModelInfo, is_ready: bool) -> dict[str, Any]:
    """One entry of GET /v1/models; the context length stands under every name that clients look for."""
    length = info.max_model_len
    return {
        "id": info.model,
        "object": "model",
        "created": info.created,
        "owned_by": "sparkinfer",
        "name": info.model,
        "schema_version": SCHEMA_VERSION,
        "hugging_face_id": "",
        "quantization": info.quantization,
        "architecture": info.architecture,
        "is_ready": is_ready,
        "context_length": length,
        "max_model_len": length,
        "max_output_length": info.max_output_tokens,
        "meta": {"n_ctx": length, "n_vocab": info.vocab_size},
        "input_modalities": [
            {"type": "text", "supported_inputs": {"max_context_length": {"value": length, "unit": "token"}}}
        ],
        "output_modalities": [
            {
                "type": "text",
                "streaming": True,
                "max_length": {"value": info.max_output_tokens, "unit": "token"},
                "supported_parameters": _supported_parameters(info),
            }
        ],
    }


def models_document(info: ModelInfo, is_ready: bool) -> dict[str, Any]:
    """The body of GET /v1/models."""
    return {"object": "list", "data": [model_document(info, is_ready)]}


def find_model(info: ModelInfo, model_id: str, is_ready: bool) -> dict[str, Any]:
    """The body of GET /v1/models/{id}; RequestError(404) for any other id."""
    if model_id != info.model:
        raise RequestError(
            404, f"The model {model_id[:128]!r} does not exist; this server has {info.model!r}",
            param="model", code="model_not_found",
        )  # fmt: skip
    return model_document(info, is_ready)


def info_document(info: ModelInfo) -> dict[str, Any]:
    """The body of GET /v1/info."""
    return {
        "model": info.model,
        "max_context": info.max_model_len,
        "max_output_tokens": info.max_output_tokens,
        "architecture": info.architecture,
        "quantization": info.quantization,
    }


def _supported_parameters(info: ModelInfo) -> dict[str, Any]:
    def between(low: float, high: float) -> dict[str, Any]:
        return {"type": "range", "min": low, "max": high}

    return {
        "temperature": between(0, 2),
        "top_p": between(0, 1),
        "min_p": between(0, 1),
        "top_k": {"type": "integer", "min": 0},
        "max_tokens": {"type": "integer", "min": 1, "max": info.max_output_tokens, "unit": "token"},
        "stop": {"type": "array", "max_items": MAX_STOPS},
        "seed": {"type": "unknown"},
        "presence_penalty": between(-2, 2),
        "frequency_penalty": between(-2, 2),
        "repetition_penalty": between(0, 2),
        "logit_bias": {"type": "unknown"},
        "logprobs": {"type": "boolean"},
        "top_logprobs": {"type": "integer", "min": 0, "max": MAX_TOP_LOGPROBS},
        "n": {"type": "integer", "min": 1, "max": MAX_CHOICES},
    }

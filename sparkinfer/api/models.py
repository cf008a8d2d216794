"""What the API knows about the served model, and the document of GET /v1/info.

Knows no process: the facts arrive as one ModelInfo.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

MAX_CHOICES = 8
MAX_STOPS = 4
MAX_TOP_LOGPROBS = 20


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
    reasoning: bool = False  # its template knows reasoning sections
    created: int = 0  # Unix time
    sampling_defaults: SamplingDefaults = SamplingDefaults()
    num_parameters: int = 0
    num_bytes: int = 0  # of the weights in the file
    is_on_gpu: bool = False  # and not in the memory of the CPU
    metadata: dict[str, int | str] = {}  # the model's shape under GGUF's own names

    @property
    def fingerprint(self) -> str:
        """system_fingerprint: the same for two answers exactly if model and limits are the same."""
        return f"fp_{hashlib.sha256(repr(self).encode()).hexdigest()[:12]}"


def model_info_from_json(text: str | bytes) -> ModelInfo:
    """Decode the facts that the service publishes; keys this class does not name are ignored."""
    return msgspec.json.decode(text, type=ModelInfo)


def info_document(info: ModelInfo) -> dict[str, Any]:
    """The body of GET /v1/info: the limits that hold now."""
    return {
        "model": info.model,
        "max_context": info.max_model_len,
        "max_output_tokens": info.max_output_tokens,
        "vocab_size": info.vocab_size,
        "architecture": info.architecture,
        "quantization": info.quantization,
        "reasoning": info.reasoning,
        "created": info.created,
        "system_fingerprint": info.fingerprint,
        "sampling_defaults": msgspec.to_builtins(info.sampling_defaults),
        "max_choices": MAX_CHOICES,
        "max_stop_strings": MAX_STOPS,
        "max_top_logprobs": MAX_TOP_LOGPROBS,
    }

"""The served model's facts in the words of model managers: names with tags, digests, sizes, dates."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from sparkinfer.api.models import ModelInfo
from sparkinfer.errors import RequestError

_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


def check_model_name(info: ModelInfo, name: str) -> None:
    """RequestError(404) unless `name` means the one model: its id, with any tag or none, or "default"."""
    wanted = name.lower()
    if not {wanted, wanted.rpartition(":")[0]} & {info.model.lower(), "default"}:
        raise RequestError(
            404, f"model '{name[:96]}' not found; this server has '{info.model}'", param="model", code="model_not_found"
        )


def digest(info: ModelInfo) -> str:
    """64 hexadecimal digits that stay while the model does."""
    return hashlib.sha256(repr((info.model, info.num_bytes, info.quantization, info.created)).encode()).hexdigest()


def parameter_size(info: ModelInfo) -> str:
    """Such as "134.5M"; "" when it is not known."""
    for unit, letter in _UNITS:
        if info.num_parameters >= unit:
            return f"{info.num_parameters / unit:.1f}{letter}"
    return ""


def timestamp(seconds: float) -> str:
    """RFC 3339 with microseconds, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def capabilities(info: ModelInfo) -> list[str]:
    """What can be asked of the model here."""
    return ["completion", "tools", *(["thinking"] if info.reasoning else [])]

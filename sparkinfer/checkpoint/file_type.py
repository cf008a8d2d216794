"""What a GGUF file says about its own quantization: general.file_type, llama.cpp's enumeration, as a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4",
}  # fmt: skip
_GUESSED = 1024  # set when the writer derived the type from the tensors


def quantization_name(metadata: Mapping[str, Any]) -> str | None:
    """The file's type ("Q4_K_M"), None when it does not say or says something unknown."""
    file_type = metadata.get("general.file_type")
    return _NAMES.get(file_type & ~_GUESSED) if isinstance(file_type, int) else None

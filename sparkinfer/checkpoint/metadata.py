"""MetadataReader: typed access to GGUF metadata; every refusal names the file, the key, the value and what is allowed.

Knows value types; not what any key means.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from sparkinfer.errors import CheckpointError

MAX_INTEGER = (1 << 31) - 1


class MetadataReader:
    """Looks keys up in one file's metadata. A default makes a key optional; without one its absence is an error.

    Writers choose integer widths freely, so any of GGUF's integer types will do, and 0/1 passes for a bool.
    """

    def __init__(self, metadata: Mapping[str, Any], path: Path) -> None:
        self.metadata = metadata
        self.path = path

    def __contains__(self, key: str) -> bool:
        return key in self.metadata

    def fail(self, key: str, allowed: str) -> NoReturn:
        if key not in self.metadata:
            raise CheckpointError(f"{self.path}: metadata key {key!r} is missing; it must be {allowed}")
        shown = reprlib.repr(self.metadata[key])
        raise CheckpointError(f"{self.path}: metadata key {key!r} is {shown}; it must be {allowed}")

    def integer(self, key: str, default: int | None = None, low: int = 0, high: int = MAX_INTEGER) -> int:
        value = self.metadata.get(key, default)
        if not isinstance(value, int) or not low <= value <= high:
            self.fail(key, f"an integer from {low} to {high}")
        return int(value)

    def uniform_integer(self, key: str, default: int | None = None, low: int = 0, high: int = MAX_INTEGER) -> int:
        """An integer, or one per layer that is the same for all."""
        value = self.metadata.get(key)
        if not isinstance(value, list):
            return self.integer(key, default, low, high)
        if not value or any(item != value[0] for item in value):
            self.fail(key, "one integer, the same for every layer")
        if not isinstance(value[0], int) or not low <= value[0] <= high:
            self.fail(key, f"integers from {low} to {high}")
        return int(value[0])

    def number(self, key: str, default: float | None = None, low: float = -math.inf, high: float = math.inf) -> float:
        """A finite number from `low` to `high`."""
        value = self.metadata.get(key, default)
        if not isinstance(value, int | float) or not math.isfinite(value) or not low <= value <= high:
            bounds = "" if low == -math.inf and high == math.inf else f" from {low} to {high}"
            self.fail(key, f"a finite number{bounds}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            self.fail(key, "a string")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self.metadata.get(key, default)
        if not isinstance(value, int) or value not in (0, 1):
            self.fail(key, "a boolean")
        return bool(value)

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> list[str]:
        value = self.metadata.get(key, default)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            self.fail(key, "an array of strings")
        return list(value)

    def numbers(self, key: str, default: tuple[float, ...] | None = None) -> list[float]:
        """Finite numbers."""
        value = self.metadata.get(key, default)
        if not isinstance(value, list | tuple) or not all(
            isinstance(item, int | float) and math.isfinite(item) for item in value
        ):
            self.fail(key, "an array of finite numbers")
        return [float(item) for item in value]

    def integers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        value = self.metadata.get(key, default)
        if not isinstance(value, list | tuple) or not all(isinstance(item, int) for item in value):
            self.fail(key, "an array of integers")
        return tuple(int(item) for item in value)

    def flags(self, key: str, min_count: int) -> tuple[bool, ...]:
        """At least `min_count` booleans."""
        value = self.metadata.get(key)
        if (
            not isinstance(value, list)
            or len(value) < min_count
            or not all(isinstance(item, int) and item in (0, 1) for item in value)
        ):
            self.fail(key, f"an array of at least {min_count} booleans")
        return tuple(bool(item) for item in value)

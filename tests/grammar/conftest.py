"""Real vocabularies for walks, built once a session."""

from __future__ import annotations

from tests.text.conftest import (  # noqa: F401 (fixtures)
    qwen35,
    qwen35_reference,
    smollm2,
    smollm2_metadata,
)

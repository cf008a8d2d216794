"""Token counts and timings of one HTTP request, summed over its prompts and choices."""

from __future__ import annotations

from typing import Any

import msgspec

from sparkinfer.request import CacheReport


class Usage:
    """Prompt tokens count once per prompt, completion tokens once per choice; ttft is the earliest of all choices."""

    __slots__ = (
        "cache", "cached_tokens", "completion_tokens", "generation_ms", "prompt_tokens", "reasoning_tokens", "ttft_ms",
    )

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.cached_tokens = 0
        self.cache: CacheReport | None = None  # of the first prompt, when it was asked for
        self.ttft_ms: float | None = None
        self.generation_ms = 0.0

    def add_prompt(self, num_prompt_tokens: int) -> None:
        self.prompt_tokens += num_prompt_tokens

    def add_choice(self, num_tokens: int, num_reasoning_tokens: int, ttft_ms: float, generation_ms: float) -> None:
        self.completion_tokens += num_tokens
        self.reasoning_tokens += num_reasoning_tokens
        self.ttft_ms = ttft_ms if self.ttft_ms is None else min(self.ttft_ms, ttft_ms)
        self.generation_ms = max(self.generation_ms, generation_ms)

    def to_json(self) -> dict[str, Any]:
        """The `usage` object; decode_tps counts from the first token, over at least one millisecond."""
        ttft_ms = self.ttft_ms or 0.0
        decode_ms = max(1.0, self.generation_ms - ttft_ms)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": self._prompt_details(),
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "ttft_ms": round(ttft_ms, 3),
            "generation_ms": round(self.generation_ms, 3),
            "decode_tps": round(self.completion_tokens * 1000.0 / decode_ms, 3),
        }

    def _prompt_details(self) -> dict[str, Any]:
        details: dict[str, Any] = {"cached_tokens": self.cached_tokens}
        if self.cache is not None:
            details["cache"] = msgspec.structs.asdict(self.cache)
        return details

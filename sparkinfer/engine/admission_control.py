"""Which requests may wait, and how long. Knows limits, lengths and times; never queues or what is free just now."""

from __future__ import annotations

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.deadlines import Deadlines
from sparkinfer.errors import RequestError


class AdmissionControl:
    """The checks at the door, after which a request can always be run to its end, and the deadlines behind it."""

    def __init__(self, config: SchedulerConfig, max_model_len: int, capacity_tokens: int) -> None:
        """Most tokens of prompt and output together, as the model has it and as the KV pool has it."""
        self.deadlines = Deadlines(config.request_timeout_s, config.admission_wait_s)
        self._max_model_len = max_model_len
        self._capacity_tokens = capacity_tokens
        self._max_queue_depth = config.max_queue_depth

    def max_output_tokens(self, num_prompt_tokens: int, max_tokens: int) -> int:
        """What the client asked for within what can be held."""
        return min(max_tokens, min(self._max_model_len, self._capacity_tokens) - num_prompt_tokens)

    def check(self, num_prompt_tokens: int, max_tokens: int, num_open_requests: int) -> None:
        """Raise RequestError for a request that cannot be taken.

        400: the prompt is empty or leaves no room for output; 503: the KV pool can never hold it;
        429: too many requests are open.
        """
        if num_prompt_tokens == 0:
            raise RequestError(400, "The prompt has no tokens.", code="empty_prompt")
        num_tokens = num_prompt_tokens + min(max_tokens, 1)  # at least
        if num_tokens > self._max_model_len:
            raise RequestError(
                400,
                f"The prompt has {num_prompt_tokens} tokens; this model's context holds {self._max_model_len} and "
                "must leave room for at least one more.",
                code="context_length_exceeded",
            )
        if num_tokens > self._capacity_tokens:
            raise RequestError(
                503,
                f"The prompt has {num_prompt_tokens} tokens; the KV cache of this server holds "
                f"{self._capacity_tokens}.",
                code="kv_cache_too_small",
            )
        if self._max_queue_depth and num_open_requests >= self._max_queue_depth:
            raise RequestError(
                429, f"{self._max_queue_depth} requests are open already; try again later.", code="queue_full"
            )

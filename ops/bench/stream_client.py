"""Streamed completions from any server with OpenAI's /v1/completions, timed token by token. Knows no server of ours."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

WORDS = ("river", "stone", "a", "quiet", "and", "north", "light", "of", "paper", "seven", "the", "window", "slow")
MAX_LINE = 1 << 20


@dataclass(slots=True)
class Answer:
    """What came back: when each event with text came (monotonic seconds), and what the server counted.

    is_cancelled: this client hung up before the end
    """

    sent_at: float = 0.0
    token_times: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    is_cancelled: bool = False

    @property
    def ttft_s(self) -> float:
        return self.token_times[0] - self.sent_at

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in zip(self.token_times, self.token_times[1:])]


def random_words(count: int, rng: random.Random) -> str:
    """Text of `count` words that no other has begun with."""
    return f"{rng.getrandbits(64):x} " + " ".join(rng.choices(WORDS, k=count))


async def complete(
    url: str, prompt: str, max_tokens: int, cancel_after: int = 0, into: Answer | None = None,
    fields: dict[str, Any] | None = None,
) -> Answer:
    """Stream one completion, to its last token whatever the model says.

    cancel_after:  hang up after so many events; 0: never
    into:          what is filled while it goes on
    fields:        more of the request's body
    Raises RuntimeError with the server's words if it refuses or breaks off.
    """
    parts = urlsplit(url)
    body = json.dumps({
        "model": "default", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True}, **(fields or {}),
    }).encode()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=MAX_LINE)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    answer = into or Answer()
    answer.sent_at = time.monotonic()
    try:
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError((status + await reader.read(2000)).decode(errors="replace"))
        while not answer.is_cancelled:
            line = await reader.readline()
            if not line:
                raise RuntimeError("the stream broke off")
            if line.startswith(b"data: [DONE]"):
                break
            if line.startswith(b"data: "):
                _take(answer, json.loads(line[6:]))
                answer.is_cancelled = 0 < cancel_after <= len(answer.token_times)
    finally:
        writer.close()
    return answer


def _take(answer: Answer, event: dict) -> None:
    if "error" in event:
        raise RuntimeError(json.dumps(event["error"]))
    text = "".join(choice.get("text", "") for choice in event.get("choices", []))
    if text:
        answer.token_times.append(time.monotonic())
        answer.text += text
    usage = event.get("usage")
    if usage:
        answer.prompt_tokens, answer.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


async def words_per_token(url: str) -> float:
    """Of this server's tokenizer over `random_words`."""
    rng = random.Random(1)
    short, long = [await complete(url, random_words(count, rng), 1) for count in (50, 450)]
    return 400 / max(1, long.prompt_tokens - short.prompt_tokens)

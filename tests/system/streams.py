"""Load for system tests: many streaming requests whose every outcome is counted."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Outcome:
    """What one streaming completion request came to."""

    status: int = 0
    text: str = ""
    finishes: list[str] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    broken: bool = False              # the connection ended before [DONE]

    @property
    def num_ends(self) -> int:
        """Finish reasons and errors seen: exactly one for a request that was accepted and answered."""
        return len(self.finishes) + len(self.errors)


async def stream_completion(
    client: httpx.AsyncClient, url: str, prompt: str, max_tokens: int, leave_after: int | None = None
) -> Outcome:
    """POST /v1/completions with stream; `leave_after` events the client hangs up."""
    body = {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "stream": True, "temperature": 0}
    outcome = Outcome()
    try:
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            outcome.status = response.status_code
            if response.status_code != 200:
                outcome.errors.append(json.loads(await response.aread())["error"])
                return outcome
            await _read_events(response, outcome, leave_after)
    except httpx.TransportError:
        outcome.broken = True
    return outcome


async def _read_events(response: httpx.Response, outcome: Outcome, leave_after: int | None) -> None:
    num_events = 0
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            outcome.done = True
            continue
        event = json.loads(data)
        if "error" in event:
            outcome.errors.append(event["error"])
            continue
        for choice in event["choices"]:
            outcome.text += choice["text"]
            if choice["finish_reason"]:
                outcome.finishes.append(choice["finish_reason"])
        num_events += 1
        if leave_after is not None and num_events >= leave_after:
            return


async def run_streams(url: str, count: int, max_tokens: int, **kwargs: Any) -> list[Outcome]:
    """`count` streams at once, each with a prompt of its own."""
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        jobs = [stream_completion(client, url, f"stream number {i} says", max_tokens, **kwargs) for i in range(count)]
        return await asyncio.gather(*jobs)

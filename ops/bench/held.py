"""What a grammar costs the service: token rates of streams under one, and of free streams beside them.

    python -m ops.bench.held --model /models/x.gguf --held 0/1 1/1 0/64 32/64 --set engine.device=cuda

Starts the real supervisor. --held 32/64: of 64 streams at once, 32 must write words (a regular expression). A stream's
rate counts the time in which all of them decode. Late rows are those whose mask was not there when they were sampled.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path

import httpx

from ops.bench.stream_client import Answer, complete, random_words
from tests.system import harness

BOOT_TIMEOUT_S = 600.0
WORDS = {"guided_regex": "[a-z0-9 ]+"}
LATE = "sparkinfer_mask_rows_late_total"
HEADINGS = ("held", "of", "a held stream, tok/s", "a free one", "all", "step ms", "late rows")


async def answers(url: str, num_held: int, num_streams: int, new_tokens: int) -> list[Answer]:
    """Of all streams, the held ones first."""
    rng = random.Random(num_held)
    return await asyncio.gather(*(
        complete(url, random_words(20, rng), new_tokens, fields=WORDS if number < num_held else {})
        for number in range(num_streams)
    ))


def rates(found: list[Answer]) -> list[float]:
    """Tokens/s of each stream while every one decodes; an event may carry several tokens."""
    start = max(answer.token_times[0] for answer in found)
    end = min(answer.token_times[-1] for answer in found)
    return [
        sum(start < at <= end for at in answer.token_times) / len(answer.token_times) * answer.output_tokens
        / (end - start) for answer in found
    ]


def late_rows(url: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(LATE))


def measure(url: str, num_held: int, num_streams: int, new_tokens: int) -> str:
    """One row of the table."""
    late_before = late_rows(url)
    by_stream = rates(asyncio.run(answers(url, num_held, num_streams, new_tokens)))
    held, free = by_stream[:num_held], by_stream[num_held:]
    cells = (
        num_held, num_streams, *(f"{sum(part) / len(part):.1f}" if part else "" for part in (held, free)),
        f"{sum(by_stream):.0f}", f"{1e3 / max(by_stream):.2f}", f"{late_rows(url) - late_before:.0f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--held", nargs="+", default=["0/1", "1/1", "0/64", "32/64"])
    parser.add_argument("--new-tokens", type=int, default=400)
    parser.add_argument("--set", action="append", default=[], help="section.key=value")
    arguments = parser.parse_args()
    harness.BOOT_TIMEOUT_S = BOOT_TIMEOUT_S
    with harness.Server(arguments.model, *arguments.set) as server:
        asyncio.run(answers(server.url, 1, 2, 20))  # what only the first requests meet
        print("| " + " | ".join(HEADINGS) + " |\n|" + "---|" * len(HEADINGS), flush=True)
        for pair in arguments.held:
            num_held, num_streams = map(int, pair.split("/"))
            print(measure(server.url, num_held, num_streams, arguments.new_tokens), flush=True)


if __name__ == "__main__":
    main()

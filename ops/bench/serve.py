"""Served throughput and latency through HTTP: clients that each send their next request when the last has ended.

    python -m ops.bench.serve --model /models/x.gguf --clients 1 8 32 64 --set engine.device=cuda
    python -m ops.bench.serve --url http://127.0.0.1:8081 --clients 1 8 32 64       # any server with /v1/completions

Prompts are random words of about --prompt-tokens tokens that share no beginning; answers have --new-tokens. "All
decoding" is the rate of output between the last client's first token and the first client's last one, with nobody's
prompt left to compute. With
--model it starts the real supervisor and stops it again. --long-prompt N times one prompt of N tokens instead that
arrives while --clients streams decode: its time to first token, and the gaps of the streams meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ops.bench.stream_client import Answer, complete, random_words, words_per_token
from tests.system import harness

BOOT_TIMEOUT_S = 600.0
HEADINGS = ("clients", "requests", "output tok/s", "all decoding", "prompt tok/s", "TTFT p50 ms", "p99", "ITL p50 ms",
            "p99", "max")


@contextlib.contextmanager
def served(arguments: argparse.Namespace) -> Iterator[str]:
    """The URL to ask: of the server named, or of one that runs as long as the context."""
    if arguments.url:
        yield arguments.url
        return
    harness.BOOT_TIMEOUT_S = BOOT_TIMEOUT_S
    with harness.Server(arguments.model, "log.level=info", *arguments.set) as server:
        print("".join(line for line in server.lines if "memory of" in line or "graphs" in line), end="", flush=True)
        yield server.url


async def client(url: str, number: int, count: int, words: int, new_tokens: int) -> list[Answer]:
    rng = random.Random(number)
    return [await complete(url, random_words(words, rng), new_tokens) for _ in range(count)]


async def measure(url: str, num_clients: int, count: int, words: int, new_tokens: int) -> str:
    """One row of the table."""
    started = time.monotonic()
    seed = time.monotonic_ns()
    lists = await asyncio.gather(
        *(client(url, seed + number, count, words, new_tokens) for number in range(num_clients))
    )
    seconds = time.monotonic() - started
    answers = [answer for answers in lists for answer in answers]
    ttft = 1e3 * np.array([answer.ttft_s for answer in answers])
    gaps = 1e3 * np.array([gap for answer in answers for gap in answer.gaps_s])
    cells = (
        num_clients, len(answers),
        f"{sum(answer.output_tokens for answer in answers) / seconds:,.0f}",
        f"{decode_rate(list(zip(*lists, strict=True))):,.0f}",
        f"{sum(answer.prompt_tokens for answer in answers) / seconds:,.0f}",
        *(f"{np.quantile(ttft, q):.0f}" for q in (0.5, 0.99)),
        *(f"{np.quantile(gaps, q):.1f}" for q in (0.5, 0.99, 1.0)),
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def decode_rate(rounds: Sequence[Sequence[Answer]]) -> float:
    """Tokens a second while all answers of a round come in; NaN if there is no such time.

    An event of a stream counts for as many tokens as its answer has for each on average.
    """
    tokens = seconds = 0.0
    for answers in rounds:
        start = max(answer.token_times[0] for answer in answers)
        end = min(answer.token_times[-1] for answer in answers)
        if end > start:
            seconds += end - start
            for answer in answers:
                events = sum(start < moment <= end for moment in answer.token_times)
                tokens += events * answer.output_tokens / len(answer.token_times)
    return tokens / seconds if seconds else math.nan


async def measure_long_prompt(url: str, num_streams: int, words: int, stream_words: int) -> str:
    """A long prompt's first token, and what the running streams notice of it."""
    rng = random.Random(time.monotonic_ns())
    answers = [Answer() for _ in range(num_streams)]
    streams = [
        asyncio.create_task(complete(url, random_words(stream_words, rng), 4000, into=answer)) for answer in answers
    ]
    while not all(len(answer.token_times) > 100 or stream.done() for answer, stream in zip(answers, streams)):
        await asyncio.sleep(0.1)
    long = await complete(url, random_words(words, rng), 8)
    until = long.token_times[0]
    while not all(answer.token_times[-1] > until or stream.done() for answer, stream in zip(answers, streams)):
        await asyncio.sleep(0.01)
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    gaps = 1e3 * np.array([gap for answer in answers for gap in _gaps_within(answer, long.sent_at, until)])
    return (
        f"{long.prompt_tokens} tokens beside {num_streams} streams: TTFT {long.ttft_s:.2f} s; their gaps meanwhile p50 "
        f"{np.quantile(gaps, 0.5):.1f} ms, p99 {np.quantile(gaps, 0.99):.1f} ms, max {gaps.max():.1f} ms"
    )


def _gaps_within(answer: Answer, start: float, end: float) -> list[float]:
    """Gaps that overlap [start, end]."""
    pairs = zip(answer.token_times, answer.token_times[1:])
    return [after - before for before, after in pairs if after > start and before < end]


async def run(url: str, arguments: argparse.Namespace) -> None:
    rate = await words_per_token(url)
    words = int(arguments.prompt_tokens * rate)
    await complete(url, random_words(words, random.Random(7)), 16)  # what only the first request meets
    if arguments.long_prompt:
        for num_streams in arguments.clients:
            print(await measure_long_prompt(url, num_streams, int(arguments.long_prompt * rate), words), flush=True)
        return
    print("| " + " | ".join(HEADINGS) + " |\n|" + "---|" * len(HEADINGS), flush=True)
    for num_clients in arguments.clients:
        print(await measure(url, num_clients, arguments.requests, words, arguments.new_tokens), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--url", default="")
    source.add_argument("--model", type=Path)
    parser.add_argument("--set", action="append", default=[], help="with --model: section.key=value")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--requests", type=int, default=2, help="of each client")
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--long-prompt", type=int, default=0)
    arguments = parser.parse_args()
    with served(arguments) as url:
        asyncio.run(run(url, arguments))


if __name__ == "__main__":
    main()

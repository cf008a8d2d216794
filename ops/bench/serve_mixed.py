"""A mixed load over HTTP and a timeline of the device: random lengths, cancellations, conversations that come back.

    python -m ops.bench.serve_mixed --model /models/x.gguf --seconds 120 --streams 64 --set engine.device=cuda

Every stream asks again as soon as its answer has ended or been given up: a third continues an earlier conversation (its
text and the answer to it), the rest are new; one in ten hangs up half-way. Prints a line every few seconds and at the
end the share of time in which the GPU ran a kernel (NVML's own utilisation, sampled ten times a second) between the
first token and the last, and the CPU time of the scheduler's process. --csv keeps the samples.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import importlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from ops.bench.stream_client import Answer, complete, random_words, words_per_token
from tests.system import harness

BOOT_TIMEOUT_S = 600.0
SAMPLE_S = 0.1
MAX_HISTORY_WORDS = 6000
CANCELLED, CONTINUED = 0.1, 0.33


@dataclass(slots=True)
class Load:
    """What the clients have done so far."""

    answers: list[Answer] = field(default_factory=list)
    open: dict[int, Answer] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def num_tokens(self) -> int:
        return sum(len(answer.token_times) for answer in (*self.answers, *self.open.values()))


@dataclass(frozen=True, slots=True)
class Sample:
    """at: seconds since the start; gpu_percent: None without NVML; scheduler_s: CPU time of its process so far."""

    at: float
    gpu_percent: int | None
    scheduler_s: float
    num_tokens: int
    num_open: int


def utilisation() -> Callable[[], int | None]:
    """NVML's share of time with a kernel running, in percent."""
    try:
        pynvml = importlib.import_module("pynvml")  # only machines with a GPU have it
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
    except (ImportError, OSError):
        return lambda: None
    return lambda: int(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)


async def stream(url: str, number: int, rate: float, until: float, load: Load) -> None:
    """One client's requests. rate: words a token."""
    rng = random.Random(number)
    history = ""
    while time.monotonic() < until:
        words = int(min(4096, rng.lognormvariate(6.2, 0.9)) * rate)
        is_continued = bool(history) and rng.random() < CONTINUED
        prompt = f"{history} {random_words(words // 4, rng)}" if is_continued else random_words(words, rng)
        new_tokens = rng.randint(16, 512)
        cancel_after = new_tokens // 2 if rng.random() < CANCELLED else 0
        answer = load.open[number] = Answer()
        try:
            await complete(url, prompt, new_tokens, cancel_after, answer)
        except (RuntimeError, OSError) as error:
            load.errors.append(str(error)[:200])
            await asyncio.sleep(0.5)
        load.answers.append(load.open.pop(number))
        history = f"{prompt} {answer.text}"
        if len(history.split()) > MAX_HISTORY_WORDS:
            history = ""


async def watch(scheduler: psutil.Process, load: Load, samples: list[Sample], every_s: float) -> None:
    """Sample until cancelled; print a line now and then."""
    busy, started, printed = utilisation(), time.monotonic(), 0
    while True:
        await asyncio.sleep(SAMPLE_S)
        times = scheduler.cpu_times()
        at = time.monotonic() - started
        samples.append(Sample(at, busy(), times.user + times.system, load.num_tokens(), len(load.open)))
        if at // every_s > printed:
            printed = int(at // every_s)
            print(line(samples[-int(every_s / SAMPLE_S) :]), flush=True)


def line(samples: list[Sample]) -> str:
    first, last = samples[0], samples[-1]
    seconds = max(last.at - first.at, SAMPLE_S)
    return (
        f"{last.at:6.1f} s: {(last.num_tokens - first.num_tokens) / seconds:7,.0f} tokens/s, {last.num_open} open, GPU "
        f"{percent(samples)}, scheduler {(last.scheduler_s - first.scheduler_s) / seconds:.2f} cores"
    )


def percent(samples: list[Sample]) -> str:
    values = [sample.gpu_percent for sample in samples if sample.gpu_percent is not None]
    return f"{np.mean(values):.1f} %" if values else "not read"


def summary(load: Load, samples: list[Sample], started: float) -> str:
    times = sorted(at - started for answer in load.answers for at in answer.token_times)
    between = [sample for sample in samples if times[0] <= sample.at <= times[-1]]
    finished = [answer for answer in load.answers if answer.token_times]
    ttft = np.array([answer.ttft_s for answer in finished])
    gaps = 1e3 * np.array([gap for answer in finished for gap in answer.gaps_s])
    prompts = sum(answer.prompt_tokens for answer in finished)
    cached = sum(answer.cached_tokens for answer in finished)
    given_up = sum(answer.is_cancelled for answer in load.answers)
    return (
        f"{len(load.answers)} requests, {given_up} given up, {len(load.errors)} errors {load.errors[:3]}\n"
        f"{len(times) / (times[-1] - times[0]):,.0f} events/s; prompts {prompts:,} tokens, {cached:,} of them cached\n"
        f"TTFT p50 {np.quantile(ttft, 0.5):.3f} s, p99 {np.quantile(ttft, 0.99):.3f} s; gaps p50 "
        f"{np.quantile(gaps, 0.5):.1f} ms, p99 {np.quantile(gaps, 0.99):.1f} ms\n"
        f"GPU busy {percent(between)} of the time between the first token and the last ({times[-1] - times[0]:.1f} s)"
    )


async def run(server: harness.Server, arguments: argparse.Namespace) -> None:
    rate = await words_per_token(server.url)
    load, samples = Load(), list[Sample]()
    started = time.monotonic()
    watcher = asyncio.create_task(watch(server.worker("gpu-0"), load, samples, arguments.line_every))
    until = started + arguments.seconds
    await asyncio.gather(*(stream(server.url, number, rate, until, load) for number in range(arguments.streams)))
    watcher.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watcher
    print(summary(load, samples, started), flush=True)
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Sample.__slots__)
            writer.writerows([getattr(sample, name) for name in Sample.__slots__] for sample in samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], help="section.key=value")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--line-every", type=float, default=5.0)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    harness.BOOT_TIMEOUT_S = BOOT_TIMEOUT_S
    with harness.Server(arguments.model, *arguments.set) as server:
        asyncio.run(run(server, arguments))


if __name__ == "__main__":
    main()

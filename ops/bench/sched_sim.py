"""Policies compared: the real Scheduler, prefix cache and all, over a made-up trace and simulated steps of an H200.

    python ops/bench/sched_sim.py                                  # 100,000 requests per row, minutes
    python ops/bench/sched_sim.py --requests 5000 --only chunked   # a first look
    python ops/bench/sched_sim.py --plot docs/sched_sim.png        # needs the "bench" extra

Nothing runs on a GPU: a step costs what StepCost says, and the clock is the simulation's own.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import multiprocessing
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ops.bench.sched_cost import BLOCK_SIZE, BYTES_PER_BLOCK, BYTES_PER_STATE, GIB, StepCost
from ops.bench.sched_trace import MAX_CONTEXT, MAX_TOKENS, THINK_S, Session, Trace
from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import SchedulerOutput, StepResult
from sparkinfer.engine.sequence import PrefixHints, Sequence, SequenceStatus
from sparkinfer.request import FinishReason, RequestId
from sparkinfer.sampling_params import SamplingParams

EOS, TOKEN = 0, 7
KV_GIB = 1.5                               # kept small, so that blocks run out in bursts

VARIANTS: dict[str, dict[str, object]] = {
    "continuous": {},
    "chunked": {"policy": "chunked"},
    "priority": {"policy": "priority"},
    "continuous, no cache": {"enabled": False},
    "continuous, reserve": {"admission": "reserve"},
    "continuous, swap": {"swap_gib": 16.0},
}


@dataclass(slots=True)
class Tally:
    """What was seen; times in seconds."""

    ttft: list[float] = field(default_factory=list)
    urgent_ttft: list[float] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)           # of steps in which sequences decode
    step_decodes: list[int] = field(default_factory=list)       # how many
    pauses: list[float] = field(default_factory=list)           # between tokens, of sequences that were preempted
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_refused: int = 0

    def itl(self, quantile: float) -> float:
        """Quantile of the gaps between tokens: a step's duration once per sequence, and the pauses."""
        gaps = np.array(self.step_s + self.pauses)
        weights = np.array(self.step_decodes + [1] * len(self.pauses))
        order = gaps.argsort()
        cumulative = weights[order].cumsum()
        return float(gaps[order][np.searchsorted(cumulative, quantile * cumulative[-1])])


class Simulation:
    """One variant over one trace. Sessions go on when their answer has ended."""

    def __init__(self, trace: Trace, variant: dict[str, object]) -> None:
        options = {"policy": "continuous", "admission": "on_demand", "swap_gib": 0.0, "enabled": True, **variant}
        cache = make_cache(
            PrefixCacheConfig(enabled=bool(options["enabled"]), host_mib=16_384),
            num_blocks=int(KV_GIB * GIB) // BYTES_PER_BLOCK, block_size=BLOCK_SIZE, free=128 * GIB,
            bytes_per_snapshot=BYTES_PER_STATE, bytes_per_block=BYTES_PER_BLOCK,
            swap_gib=float(str(options["swap_gib"])),
        )
        config = SchedulerConfig(
            policy=str(options["policy"]), admission=str(options["admission"]), max_num_seqs=96,
            max_num_batched_tokens=4096, prefill_chunk_tokens=1024, admission_wait_s=300.0,
        )
        self.scheduler = Scheduler(config, cache, MAX_CONTEXT + MAX_TOKENS)
        self.tally = Tally()
        self.now = 0.0
        self._trace = trace
        self._cost = StepCost()
        self._starts = deque(enumerate(trace.starts))
        self._returning: list[tuple[float, int, Session]] = []   # heap: when, tie-break, who
        self._sessions: dict[int, tuple[Session, int]] = {}      # by request id, with the length of the answer
        self._sequences: dict[int, Sequence] = {}                # by request id
        self._paused: dict[Sequence, float] = {}                 # preempted, and since when
        self._num_requests = 0
        self._thinking = np.random.default_rng(1).exponential(THINK_S, sum(trace.turns)).tolist()
        self._sampling = SamplingParams(max_tokens=MAX_TOKENS, seed=0)

    def run(self) -> Tally:
        scheduler = self.scheduler
        while self._starts or self._returning or scheduler.num_open_requests:
            self._arrive()
            scheduler.expire(self.now)
            output = scheduler.schedule()
            if output.scheduled:
                self._step(output)
            elif not scheduler.num_open_requests:
                self.now = self._next_arrival()
            self._listen()
        return self.tally

    def _next_arrival(self) -> float:
        times = [self._starts[0][1]] if self._starts else []
        return min([*times, *(entry[0] for entry in self._returning[:1])], default=self.now)

    def _arrive(self) -> None:
        while self._starts and self._starts[0][1] <= self.now:
            index, at = self._starts.popleft()
            self._submit(self._trace.session(index), at)
        while self._returning and self._returning[0][0] <= self.now:
            at, _, session = heapq.heappop(self._returning)
            self._submit(session, at)

    def _submit(self, session: Session, at: float) -> None:
        number = self._num_requests
        self._num_requests += 1
        num_new_tokens, num_output_tokens = session.turns.pop()
        if len(session.token_ids) + num_new_tokens > MAX_CONTEXT:  # the client forgets all but the system prompt
            session.token_ids = session.token_ids[: session.turn_starts[0]]
            session.turn_starts = session.turn_starts[:1]
        prompt = self._trace.add_prompt(session, number, num_new_tokens)
        hints = PrefixHints(turn_starts=tuple(session.turn_starts))
        sequence = Sequence(
            RequestId(number), 0, 0, prompt, self._sampling, frozenset([EOS]), at, session.priority,
            session.client_id, hints,
        )
        self._sessions[number] = (session, num_output_tokens)
        self._sequences[number] = sequence
        self.scheduler.add([sequence], self.now)

    def _step(self, output: SchedulerOutput) -> None:
        step_s = self._cost.step_s(output)
        before = self.now
        self.now += step_s
        if output.num_decode_tokens:
            self.tally.step_s.append(step_s)
            self.tally.step_decodes.append(output.num_decode_tokens)
        if output.num_preempted:
            for sequence in self._sequences.values():
                if sequence.status == SequenceStatus.WAITING and sequence.output_token_ids:
                    self._paused.setdefault(sequence, before)
        token_ids = []
        sessions = self._sessions
        for row in output.sampling_rows:
            sequence = row.sequence
            is_last = len(sequence.output_token_ids) >= sessions[sequence.request_id][1]
            token_ids.append(EOS if is_last else TOKEN)
            if row.token_ids is not None and sequence in self._paused:
                self.tally.pauses.append(self.now - self._paused.pop(sequence))
        self.scheduler.update(output, StepResult(token_ids), self.now)

    def _listen(self) -> None:
        events = self.scheduler.take_events()
        self.tally.num_output_tokens += len(events.token_ids)
        for sequence in events.finished:
            session, _ = self._sessions.pop(sequence.request_id)
            del self._sequences[sequence.request_id]
            self._paused.pop(sequence, None)
            if sequence.finish_reason == FinishReason.ERROR:
                self.tally.num_refused += 1
            else:
                self._count(sequence)
            session.token_ids += sequence.output_token_ids
            session.turn_starts.append(len(session.token_ids))
            if session.turns:
                at = self.now + self._thinking[sequence.request_id]
                heapq.heappush(self._returning, (at, sequence.request_id, session))

    def _count(self, sequence: Sequence) -> None:
        tally = self.tally
        ttft = (sequence.first_token_at or self.now) - sequence.arrived_at
        tally.ttft.append(ttft)
        tally.arrived.append(sequence.arrived_at)
        if sequence.priority < 0:
            tally.urgent_ttft.append(ttft)
        tally.num_prompt_tokens += sequence.num_prompt_tokens
        tally.num_cached_tokens += sequence.num_cached_tokens


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, and what the figure is drawn from."""

    name: str
    cells: list[str]
    ttft: np.ndarray
    itl: np.ndarray
    arrived: np.ndarray


QUANTILES = np.linspace(0.0, 0.999, 200)
HEADINGS = [
    "variant", "requests/s", "output tok/s", "TTFT p50 s", "p99 s", "urgent p99 s", "ITL p50 ms", "p99 ms",
    "cached", "preemptions", "swapped", "refused", "us/step",
]


def simulate(arguments: tuple[str, int, float, int]) -> Row:
    name, num_requests, requests_per_s, seed = arguments
    gc.set_threshold(200_000, 50, 1000)  # nothing here is cyclic, and full collections walk every cached block
    started = time.process_time()
    simulation = Simulation(Trace(num_requests, requests_per_s, seed), VARIANTS[name])
    tally = simulation.run()
    simulation.scheduler.check_integrity()
    scheduler, duration = simulation.scheduler, simulation.now
    cpu_us = (time.process_time() - started) * 1e6 / max(1, len(tally.step_s))
    ttft = np.array(tally.ttft)
    cells = [
        f"{len(ttft) / duration:.1f}", f"{tally.num_output_tokens / duration:,.0f}",
        f"{np.quantile(ttft, 0.5):.2f}", f"{np.quantile(ttft, 0.99):.1f}",
        f"{np.quantile(tally.urgent_ttft, 0.99):.2f}",
        f"{tally.itl(0.5) * 1e3:.1f}", f"{tally.itl(0.99) * 1e3:.1f}",
        f"{tally.num_cached_tokens / tally.num_prompt_tokens:.0%}", f"{scheduler.num_preemptions:,}",
        f"{scheduler.num_swap_outs:,}", f"{tally.num_refused:,}", f"{cpu_us:.0f}",
    ]
    itl = np.array([tally.itl(q) for q in QUANTILES])
    return Row(name, cells, ttft, itl, np.array(tally.arrived))


def plot(rows: list[Row], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 3.8), constrained_layout=True)
    for row in rows:
        axes[0].plot(np.quantile(row.ttft, QUANTILES), QUANTILES, label=row.name)
        axes[1].plot(row.itl * 1e3, QUANTILES, label=row.name)
        minutes = (row.arrived // 60).astype(int)
        counts = np.bincount(minutes)
        means = np.bincount(minutes, row.ttft) / np.maximum(counts, 1)
        axes[2].plot(means[:90], label=row.name, linewidth=0.9)
    for axis, label in zip(axes, ("time to first token, s", "inter-token latency, ms", "arrival, minute")):
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_xscale("log")
    axes[0].set_ylabel("share of requests")
    axes[1].set_ylabel("share of tokens")
    axes[2].set_yscale("log")
    axes[2].set_ylabel("mean time to first token, s")
    axes[1].legend(fontsize=8)
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=15.0, help="requests per second")
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--plot", default="", metavar="PNG")
    arguments = parser.parse_args()
    jobs = [(name, arguments.requests, arguments.rate, arguments.seed) for name in arguments.only]
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        print("| " + " | ".join(HEADINGS) + " |\n|" + "---|" * len(HEADINGS))
        rows = []
        for row in pool.imap(simulate, jobs):
            print("| " + " | ".join([row.name, *row.cells]) + " |", flush=True)
            rows.append(row)
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()

"""Decode rate of a full-size model inside this process, then through the whole service with one HTTP client.

    python -m ops.bench.gpu_serve [--model 35B-A3B] [--layers 0] [--tokens 512] [--streams 1 8] [--path /dev/shm/x.gguf]

Writes a GGUF file of the model's shape with random weights (22 GB for 35B-A3B), runs it in the engine, then starts the
real supervisor with it. Needs a GPU that the kernels cover, and memory for the file. A rate counts the time in which
every stream decodes, so that prompts are not in it; "overall" counts from the first token to the last.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

import torch

from ops.bench.pipeline import request_bytes
from ops.bench.synthetic_gguf import SHAPES, write
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.cuda_model_runner import CudaModelRunner
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.model.cuda.coverage import why_not_covered
from sparkinfer.model.cuda.loader import load_decode_weights
from sparkinfer.model.cuda.pools import CudaPools, RingStatePool
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams
from tests.system import harness

BLOCK_SIZE = 16
MAX_MODEL_LEN = 8192
PROMPT_TOKENS = 40
BOOT_TIMEOUT_S = 400.0


class Arrivals:
    """When each stream's tokens came."""

    def __init__(self) -> None:
        self.times: dict[Hashable, list[float]] = {}

    def note(self, stream: Hashable, num_tokens: int = 1) -> None:
        """num_tokens more of a stream, now."""
        self.times.setdefault(stream, []).extend([time.monotonic()] * num_tokens)

    def rates(self) -> tuple[float, float]:
        """Tokens/s while every stream runs, and from the first token to the last."""
        firsts, lasts = ([times[end] for times in self.times.values()] for end in (0, -1))
        start, end = max(firsts), min(lasts)
        together = sum(start < at <= end for times in self.times.values() for at in times)
        total = sum(map(len, self.times.values())) - len(firsts)
        return together / (end - start), total / (max(lasts) - min(firsts))


class CountingSink:
    """An OutputSink that only notes tokens."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()

    def publish(self, events: StepEvents) -> None:
        for sequence in events.sequences:
            self.arrivals.note(sequence.request_id)


def drain_streams(port: int, streams: int, tokens: int) -> Arrivals:
    """Stream answers, an event a token; the last one, which ends the stream, counts too."""
    selector = selectors.DefaultSelector()
    arrivals = Arrivals()
    for number in range(streams):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(request_bytes(number, tokens, port))
        selector.register(connection, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select(timeout=60) or sys.exit("no data for 60 s"):
            data = key.fileobj.recv(1 << 16)
            arrivals.note(key.fd, data.count(b"data: "))
            if not data or b"[DONE]" in data:
                selector.unregister(key.fileobj)
                key.fileobj.close()
    return arrivals


def print_prefill(runner: CudaModelRunner, num_tokens: int) -> None:
    """Time of one chunk, and the kernels that take most of it."""
    with runner._on_device(runner._stream):
        batch = runner._inputs.dummy_batch(0, num_tokens)
        runner._forward.prefill.run(batch)
        torch.cuda.synchronize()
        started = time.monotonic()
        runner._forward.prefill.run(batch)
        enqueued = time.monotonic()
        torch.cuda.synchronize()
        print(f"a chunk of {num_tokens} tokens: {(time.monotonic() - started) * 1e3:.1f} ms, enqueued after "
              f"{(enqueued - started) * 1e3:.1f} ms", flush=True)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            runner._forward.prefill.run(batch)
            torch.cuda.synchronize()
    rows = sorted(profile.key_averages(), key=lambda row: -row.self_device_time_total)
    for row in rows[:12]:
        print(f"    {row.key[:90]:90} {row.count:5} x {row.self_device_time_total / row.count:8.1f} us "
              f"= {row.self_device_time_total / 1e3:7.2f} ms", flush=True)


def load(path: Path, max_num_seqs: int) -> CudaModelRunner:
    device = torch.device("cuda", 0)
    gguf = GGUFFile.open(path)
    hparams = HParams.from_gguf(gguf)
    assert why_not_covered(gguf, hparams) is None, why_not_covered(gguf, hparams)
    started = time.monotonic()
    weights = load_decode_weights(gguf, hparams, device, lambda done, total: None)
    torch.cuda.synchronize()
    print(f"loaded in {time.monotonic() - started:.1f} s, {torch.cuda.memory_allocated() / 1e9:.2f} GB, "
          f"at most {torch.cuda.max_memory_allocated() / 1e9:.2f} GB", flush=True)
    num_blocks = max_num_seqs * MAX_MODEL_LEN // BLOCK_SIZE
    pools = CudaPools(KVCache(hparams, num_blocks + 1, BLOCK_SIZE, torch.bfloat16, device),
                      RingStatePool(hparams, max_num_seqs + 1, device))
    runner = CudaModelRunner(weights, pools, max_num_seqs, MAX_MODEL_LEN, device)
    started = time.monotonic()
    runner.capture(lambda done, total: print(f"  graph {done}/{total}: {time.monotonic() - started:.1f} s", flush=True))
    return runner


def run_engine(runner: CudaModelRunner, streams: int, tokens: int, prompt_tokens: int) -> None:
    """Greedy answers of `streams` requests at once."""
    sink = CountingSink()
    cache = CacheManager(BlockManager(runner.num_blocks, BLOCK_SIZE))
    engine = Engine(Scheduler(SchedulerConfig(max_num_seqs=max(8, streams)), cache, MAX_MODEL_LEN), runner, sink)
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0)
    started = time.monotonic()
    for number in range(streams):
        prompt = [(7 * i + number) % 250 for i in range(prompt_tokens)]
        engine.submit(RequestId(number + 1), 0, prompt, sampling)
    while engine.has_work:
        engine.step()
    together, overall = sink.arrivals.rates()
    first_at = min(times[0] for times in sink.arrivals.times.values())
    print(f"in process, {streams} streams, {prompt_tokens} prompt tokens: {together:.1f} tok/s, "
          f"{streams / together * 1e3:.3f} ms a step; {overall:.1f} tok/s overall; "
          f"first token after {(first_at - started) * 1e3:.0f} ms", flush=True)


def print_graph_rate(runner: CudaModelRunner) -> None:
    """What the device alone needs for a step: graphs replayed one after another."""
    for size, graph in runner._forward.graphs._graphs.items():
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with runner._on_device(runner._stream):
            start.record()
            for _ in range(50):
                graph.run(graph._dummy)
            end.record()
            end.synchronize()
        print(f"graph of {size} rows: {start.elapsed_time(end) / 50:.3f} ms a step at context 1", flush=True)


def run_in_process(path: Path, streams: list[int], tokens: int) -> None:
    runner = load(path, max(8, *streams))
    run_engine(runner, 1, 32, PROMPT_TOKENS)
    print_graph_rate(runner)
    for count in streams:
        run_engine(runner, count, tokens, PROMPT_TOKENS)
    run_engine(runner, 1, 64, 4096)
    for num_tokens in (PROMPT_TOKENS, 2048):
        print_prefill(runner, num_tokens)
    runner.close()


def run_service(path: Path, streams: list[int], tokens: int) -> None:
    harness.BOOT_TIMEOUT_S = BOOT_TIMEOUT_S
    started = time.monotonic()
    settings = ("engine.device=cuda", f"scheduler.max_num_seqs={max(8, *streams)}", "model.sampling_defaults=greedy",
                f"model.max_model_len={MAX_MODEL_LEN}", f"model.max_output_tokens={MAX_MODEL_LEN - 1}")
    with harness.Server(path, *settings) as server:
        print(f"READY after {time.monotonic() - started:.1f} s", flush=True)
        print("".join(line for line in server.lines if "kernels" in line), flush=True)
        drain_streams(server.port, 1, 32)
        for count in streams:
            for _ in range(2):
                arrivals = drain_streams(server.port, count, tokens)
                together, overall = arrivals.rates()
                num_events = sum(map(len, arrivals.times.values()))
                print(f"over HTTP, {count} streams: {together:.1f} tok/s, {overall:.1f} overall, "
                      f"{num_events} events", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="35B-A3B", choices=SHAPES)
    parser.add_argument("--layers", type=int, default=0, help="keep only so many layers")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--path", type=Path, default=Path("/dev/shm/sparkinfer-bench.gguf"))
    parser.add_argument("--part", choices=["both", "process", "service"], default="both")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.model]
    if not arguments.path.exists():
        started = time.monotonic()
        write(replace(shape, layers=arguments.layers or shape.layers), arguments.path)
        size = arguments.path.stat().st_size
        print(f"{arguments.path}: {size / 1e9:.2f} GB written in {time.monotonic() - started:.1f} s", flush=True)
    if arguments.part == "service":
        return run_service(arguments.path, arguments.streams, arguments.tokens)
    print(torch.cuda.get_device_name(), arguments.model, f"{arguments.layers or shape.layers} layers", flush=True)
    run_in_process(arguments.path, arguments.streams, arguments.tokens)
    if arguments.part == "both":  # the memory of this process must be free first
        again = [sys.executable, "-m", "ops.bench.gpu_serve", *sys.argv[1:], "--part", "service"]
        torch.cuda.empty_cache()
        raise SystemExit(subprocess.run(again, check=False).returncode)
    return None


if __name__ == "__main__":
    main()

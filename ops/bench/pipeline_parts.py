"""Where each microsecond of a streamed token goes: every stage of the pipeline by itself, in one process.

    python ops/bench/pipeline_parts.py                       # 256 streams, a token for each of them in every step

The stages are the workers' own code over real rings and sockets; only the processes and their wake-ups are missing,
and the HTTP server between the last two stages. CPU time, median over the steps, divided by the number of streams.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from ipc.backlog import BackloggedWriter
from ipc.codec import TEXT_EVENTS
from ipc.doorbell import Doorbell
from ipc.mask_table import MaskTable
from ipc.messages import Started
from ipc.ring import RingReader, RingWriter, create_ring
from ipc.segment import Segment
from sparkinfer.api.completions_reply import CompletionReply
from sparkinfer.api.generation import Generation
from sparkinfer.api.models import ModelInfo
from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.config import DEFAULT_MODEL, Config, ModelConfig, PrefixCacheConfig, SchedulerConfig, cache_dir
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.sequence import Sequence
from sparkinfer.request import Request, RequestId, TextPrompt
from sparkinfer.sampling_params import SamplingParams
from sparkinfer.text.choice_stream import StreamOptions
from sparkinfer.text.prompt_encoder import EncodedPrompt, PromptEncoder
from workers.gpu_sink import RingSink
from workers.http_answer import Answer, StreamBody
from workers.http_events import EventRouter
from workers.http_metrics import HttpMetrics
from workers.text import TextWorker
from workers.text_request import OpenRequest

RING_BYTES = 4 << 20
MAX_TOKENS = 4000


class Clock:
    """CPU microseconds per token of every stage."""

    def __init__(self, num_streams: int) -> None:
        self._num_streams = num_streams
        self._times: dict[str, list[float]] = {}

    def run(self, stage: str, action: Callable[[], Any]) -> Any:
        started = time.thread_time()
        result = action()
        self._times.setdefault(stage, []).append((time.thread_time() - started) / self._num_streams * 1e6)
        return result

    def report(self) -> None:
        for stage, times in self._times.items():
            print(f"| {stage} | {statistics.median(times):.2f} |")
        print(f"| together | {sum(map(statistics.median, self._times.values())):.2f} |")


def make_request(number: int) -> Request:
    sampling = SamplingParams(max_tokens=MAX_TOKENS)
    return Request(request_id=RequestId(number), prompt=TextPrompt(text="x"), sampling=sampling)


def make_ring(name: str) -> tuple[BackloggedWriter, RingReader]:
    segment, doorbell = create_ring(name, RING_BYTES), Doorbell.create()
    reader = RingReader(Segment.attach(os.dup(segment.fd), segment.size), doorbell)
    return BackloggedWriter(RingWriter(segment, doorbell), RING_BYTES), reader


def take(reader: RingReader) -> list[bytes]:
    reader.acknowledge()
    return reader.drain()


class GpuSide:
    """Scheduler, scripted runner and the way out."""

    def __init__(self, num_streams: int, script: list[int], writer: BackloggedWriter) -> None:
        cache = make_cache(
            PrefixCacheConfig(), num_blocks=num_streams * 300, block_size=16, bytes_per_snapshot=0, free=1 << 33
        )
        self._scheduler = Scheduler(SchedulerConfig(max_num_seqs=num_streams), cache, 8192)
        self._runner = ScriptedModelRunner(lambda _prompt: script, num_streams * 300, 16)
        context: Any = SimpleNamespace(writers={"text-0": writer})
        self._sink = RingSink(context)
        sampling = SamplingParams(max_tokens=MAX_TOKENS, seed=0)
        for number in range(num_streams):
            sequence = Sequence(RequestId(number), 0, 0, [number + 5, 6, 7], sampling, frozenset(), 0.0)
            self._scheduler.add([sequence], 0.0)

    def step(self, clock: Clock) -> None:
        output = clock.run("gpu: schedule a step", self._scheduler.schedule)
        result = self._runner.launch(output).wait()
        clock.run("gpu: take in its tokens", lambda: self._scheduler.update(output, result, 1.0))
        events = self._scheduler.take_events()
        clock.run("gpu: pack them, write to the ring, wake the text worker", lambda: self._sink.publish(events))


def text_worker(num_streams: int, encoder: PromptEncoder, writer: BackloggedWriter) -> TextWorker:
    """With all requests accepted."""
    context: Any = SimpleNamespace(
        config=Config(), spec=SimpleNamespace(index=0), writers={"http-0": writer},
        status=SimpleNamespace(set_gauge=lambda *_: None), mask_table=MaskTable.create(64, 64),
    )
    worker = TextWorker(context, encoder)
    for number in range(num_streams):
        request = make_request(number)
        worker._requests[request.request_id] = opened = OpenRequest(request, 0)
        opened.start(EncodedPrompt([5, 6, 7], MAX_TOKENS, StreamOptions(), []), encoder.tokenizer)
    return worker


class HttpSide:
    """Answers whose transports keep what they are given, for the sockets."""

    def __init__(self, num_streams: int) -> None:
        self.written: list[tuple[int, bytes]] = []
        self._router = EventRouter()
        info = ModelInfo(model="model-135m.q4_1", max_model_len=8192, max_output_tokens=8192, vocab_size=49152)
        metrics = HttpMetrics()
        for number in range(num_streams):
            request = make_request(number)
            body = StreamBody(CompletionReply(f"{number:024x}", 1_796_000_000, info), send_usage=True)
            answer = Answer(Generation(requests=(request,), stream=True, include_usage=True), body, metrics, 0.0)
            self._router.add(request.request_id, answer, "text-0")
            self._router.deliver([Started(request.request_id, 3)])
            transport: Any = SimpleNamespace(send_bytes=lambda data, number=number: self.written.append((number, data)))
            body.attach(transport, None)

    def step(self, clock: Clock, reader: RingReader) -> None:
        self.written.clear()
        frames = clock.run("http: read the ring", lambda: take(reader))
        events = clock.run("http: decode the events", lambda: [e for f in frames for e in TEXT_EVENTS.decode(f)])
        clock.run("http: route, render, join, count", lambda: self._router.deliver(events))


def reading_client(address: tuple[str, int], num_streams: int) -> int:
    """A process that reads every connection some times a second until it ends; its id."""
    pid = os.fork()
    if pid:
        return pid
    connections = [socket.create_connection(address) for _ in range(num_streams)]
    while True:
        time.sleep(0.01)  # as pipeline.py's client reads
        for connection in connections:
            if not connection.recv(1 << 16):
                os._exit(0)


async def measure(num_streams: int, num_steps: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=num_streams)
    client = reading_client(listener.getsockname(), num_streams)
    sockets = [listener.accept()[0] for _ in range(num_streams)]
    for connection in sockets:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    encoder = PromptEncoder.from_gguf(GGUFFile.open(resolve(DEFAULT_MODEL, cache_dir(ModelConfig()))))
    to_text, text_reader = make_ring("gpu-text")
    to_http, http_reader = make_ring("text-http")
    script = encoder.tokenizer.encode("A story about a small town by the sea, and those who lived there. " * 40)
    gpu, http = GpuSide(num_streams, script, to_text), HttpSide(num_streams)
    text = text_worker(num_streams, encoder, to_http)
    clock = Clock(num_streams)
    for number in range(num_steps + 20):
        if number == 20:
            clock = Clock(num_streams)  # prompts and caches are warm
        gpu.step(clock)
        frames = clock.run("text: read the ring", lambda: take(text_reader))
        clock.run("text: unpack, detokenise, filter, encode, to the ring", partial(text.on_frames, "gpu-0", frames))
        http.step(clock, http_reader)
        clock.run("http: one send() a stream, in the kernel", lambda: [sockets[n].send(d) for n, d in http.written])
        time.sleep(0.0005)  # a step goes by
    for connection in sockets:
        connection.close()
    os.waitpid(client, 0)
    clock.report()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    print("| stage | CPU us/token |\n|---|---|")
    asyncio.run(measure(arguments.streams, arguments.steps))


if __name__ == "__main__":
    main()

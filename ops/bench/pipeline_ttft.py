"""What the processes add to the time to first token: a client's clock against the engine's, over real sockets.

    python ops/bench/pipeline_ttft.py                        # 1 and 16 streams, steps of 1 ms

Each of the streams sends its next request as soon as its answer has ended. Added is what the client waited for the
first text minus what the engine says it took itself (usage.ttft_ms: from when the text worker sent the tokenised prompt
to the first token sampled; the message's way and the rest of the step that was running are the engine's). Parsing,
tokenizer, the other process borders, detokenizer and SSE are in it.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.config import DEFAULT_MODEL, ModelConfig, cache_dir
from tests.system.harness import Server

SIXTEEN_WORDS = "the quick brown fox jumps over the lazy dog and tells all others of it "
NUM_WARM = 8  # requests of each stream that do not count


@dataclass(slots=True)
class Stream:
    """One connection and the request under way on it."""

    connection: socket.socket
    sent_at: float = 0.0
    first_at: float = 0.0
    received: bytes = b""

    def ask(self, number: int, tokens: int, prompt_words: int, port: int) -> None:
        prompt = f"Request {number}: {SIXTEEN_WORDS * (prompt_words // 16)}"  # which the scripted runner repeats
        length = tokens // 2 + number * 37 % tokens  # else all streams would end, and begin again, in the same step
        body = json.dumps({"prompt": prompt, "max_tokens": length, "stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        self.received, self.first_at = b"", 0.0
        self.sent_at = time.perf_counter()
        self.connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())

    def read(self) -> tuple[float, float] | None:
        """Client's and engine's TTFT in milliseconds once the answer has ended."""
        data = self.connection.recv(1 << 16)
        if not data:
            sys.exit(f"the connection ended after {self.received[-300:]!r}")
        self.received += data
        if not self.first_at and b'"text":"' in self.received:
            self.first_at = time.perf_counter()
        if not self.received.endswith(b"0\r\n\r\n"):
            return None
        usage = self.received[self.received.index(b'"ttft_ms":') + len(b'"ttft_ms":') :]
        return (self.first_at - self.sent_at) * 1e3, float(usage[: usage.index(b",")])


def measure(port: int, num_streams: int, num_requests: int, tokens: int, prompt_words: int) -> np.ndarray:
    """[num_streams * num_requests, 2] ms: client's and engine's TTFT."""
    selector = selectors.DefaultSelector()
    for number in range(num_streams):
        stream = Stream(socket.create_connection(("127.0.0.1", port)))
        stream.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(stream.connection, selectors.EVENT_READ, stream)
        stream.ask(number, tokens, prompt_words, port)
        time.sleep(0.003)  # or all of them would end their answers together
    times: list[tuple[float, float]] = []
    number = num_streams
    while len(times) < (num_requests + NUM_WARM) * num_streams:
        for key, _ in selector.select(timeout=30) or sys.exit("no data for 30 s"):
            found = key.data.read()
            if found is not None:
                times.append(found)
                key.data.ask(number, tokens, prompt_words, port)
                number += 1
    for key in list(selector.get_map().values()):
        key.data.connection.close()
    return np.array(times[NUM_WARM * num_streams :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--requests", type=int, default=60, help="of each stream")
    parser.add_argument("--tokens", type=int, default=100, help="of an answer on average")
    parser.add_argument("--prompt-words", type=int, default=64)
    parser.add_argument("--step-us", type=int, default=1000)
    parser.add_argument("--set", action="append", default=[], help="configuration override, section.key=value")
    arguments = parser.parse_args()
    model = resolve(DEFAULT_MODEL, cache_dir(ModelConfig()))
    overrides = ("engine.runner=scripted", f"engine.scripted_step_us={arguments.step_us}", "log.level=warning",
                 "model.max_model_len=8192", *arguments.set)
    with Server(model, *overrides) as server:
        print("| streams | client's TTFT, p50 ms | p99 | engine's, p50 ms | p99 | added, p50 ms | p90 | p99 | max |")
        print("|---|---|---|---|---|---|---|---|---|")
        for streams in arguments.streams:
            times = measure(server.port, streams, arguments.requests, arguments.tokens, arguments.prompt_words)
            added = times[:, 0] - times[:, 1]
            cells = [
                *(f"{np.quantile(times[:, 0], q):.2f}" for q in (0.5, 0.99)),
                *(f"{np.quantile(times[:, 1], q):.2f}" for q in (0.5, 0.99)),
                *(f"{np.quantile(added, q):.2f}" for q in (0.5, 0.9, 0.99, 1.0)),
            ]
            print(f"| {streams} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

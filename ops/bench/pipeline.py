"""Streamed tokens per second through every process but the model: real supervisor, sockets, rings; scripted tokens.

    python ops/bench/pipeline.py                        # 1, 64 and 256 streams, as many tokens as take some seconds
    python ops/bench/pipeline.py --streams 256 --tokens 2000 --set server.http_workers=2

Prints, per number of streams: tokens/s as the client counts them, CPU microseconds per token of each process, the
scheduler's CPU microseconds per step, and the client's own share (it runs on the same cores).
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.config import DEFAULT_MODEL, ModelConfig, cache_dir
from tests.system.harness import Server

ROLES = {"workers.gpu_scheduler": "gpu", "workers.text": "text", "workers.http_frontend": "http"}


def request_bytes(number: int, tokens: int, port: int) -> bytes:
    body = json.dumps({"prompt": f"Stream number {number} tells a story about", "max_tokens": tokens, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def drain_streams(port: int, streams: int, tokens: int) -> tuple[float, float, int]:
    """Open all streams, read them to [DONE]; returns (first byte at, last byte at, SSE events), monotonic seconds."""
    selector = selectors.DefaultSelector()
    tails: dict[socket.socket, bytes] = {}
    for number in range(streams):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(request_bytes(number, tokens, port))
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
        tails[connection] = b""
    first_at = last_at = 0.0
    events = 0
    while tails:
        for key, _ in selector.select(timeout=30) or sys.exit("no data for 30 s"):
            connection = key.fileobj
            data = connection.recv(1 << 16)
            last_at = time.monotonic()
            first_at = first_at or last_at
            events += data.count(b"data: ")
            tail = (tails[connection] + data)[-32:]
            tails[connection] = tail
            if not data or b"[DONE]" in tail:
                selector.unregister(connection)
                connection.close()
                del tails[connection]
    return first_at, last_at, events


def cpu_seconds(server: Server) -> dict[str, float]:
    """CPU time by role, summed over its processes, and of this client."""
    totals = {"gpu": 0.0, "text": 0.0, "http": 0.0}
    for process in server.workers():
        role = ROLES.get(process.cmdline()[2])
        if role:
            times = process.cpu_times()
            totals[role] += times.user + times.system
    own = psutil.Process().cpu_times()
    return {**totals, "client": own.user + own.system}


def measure(server: Server, streams: int, tokens: int) -> dict[str, float]:
    before, started_at = cpu_seconds(server), time.monotonic()
    first_at, last_at, events = drain_streams(server.port, streams, tokens)
    after = cpu_seconds(server)
    total = streams * tokens
    used = {role: (after[role] - before[role]) / total * 1e6 for role in after}
    return {
        "streams": streams,
        "tokens_per_s": total / (last_at - first_at),
        "events_per_token": events / total,
        "first_byte_ms": (first_at - started_at) * 1e3,
        "gpu_us_per_step": (after["gpu"] - before["gpu"]) / tokens * 1e6,
        **{f"{role}_us": value for role, value in used.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--tokens", type=int, default=0, help="tokens a stream; 0: about 200,000 tokens in all")
    parser.add_argument("--set", action="append", default=[], help="configuration override, section.key=value")
    arguments = parser.parse_args()
    model = resolve(DEFAULT_MODEL, cache_dir(ModelConfig()))
    overrides = ("engine.runner=scripted", f"scheduler.max_num_seqs={max(arguments.streams)}", "log.level=warning",
                 "model.max_model_len=8192", "model.max_output_tokens=8000", *arguments.set)
    with Server(model, *overrides) as server:
        drain_streams(server.port, 8, 50)  # warm
        print("streams   tokens/s  gpu us/step |  us/token: gpu   text   http  client | events/token  first byte ms")
        for streams in arguments.streams:
            tokens = arguments.tokens or max(100, min(6000, 200_000 // streams))
            row = measure(server, streams, tokens)
            print(f"{streams:7d} {row['tokens_per_s']:10,.0f} {row['gpu_us_per_step']:12,.0f} | "
                  f"{row['gpu_us']:14.1f} {row['text_us']:6.1f} {row['http_us']:6.1f} {row['client_us']:7.1f} | "
                  f"{row['events_per_token']:12.2f} {row['first_byte_ms']:14.1f}", flush=True)


if __name__ == "__main__":
    main()

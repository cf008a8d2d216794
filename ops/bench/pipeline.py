"""Streamed tokens per second through every process but the model: real supervisor, sockets, rings; scripted tokens.

    python ops/bench/pipeline.py                        # 1, 64 and 256 streams, as many tokens as take some seconds
    python ops/bench/pipeline.py --streams 256 --tokens 2000 --set engine.scripted_step_us=2400

Prints, per number of streams: tokens/s as the client counts them, SSE events per token, and the CPU microseconds per
token of each process; of the http workers, those of Python's thread and those of the threads that own the sockets. The
client looks at its sockets every READ_EVERY_S, so that it costs little and what it costs is known: it runs on the same
cores. The last column is what else ran on this machine, in cores; where it is not near 0 the row says little.
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

import psutil

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.config import DEFAULT_MODEL, ModelConfig, cache_dir
from tests.system.harness import Server

READ_EVERY_S = 0.01
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
        time.sleep(READ_EVERY_S)  # a wake-up for every event would cost the server its cores
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


@dataclass(slots=True)
class CpuTimes:
    """CPU seconds so far: by role, of this client, and of everything on this machine."""

    by_role: dict[str, float]
    all: float

    @classmethod
    def now(cls, server: Server) -> CpuTimes:
        by_role = dict.fromkeys(("gpu", "text", "http", "sockets", "client"), 0.0)
        for process in server.workers():
            role = ROLES.get(process.cmdline()[2])
            if role is None:
                continue
            threads = {thread: _run_s(f"/proc/{process.pid}/task/{thread.name}") for thread in _threads(process.pid)}
            for thread, seconds in threads.items():
                is_socket_thread = role == "http" and int(thread.name) != process.pid
                by_role["sockets" if is_socket_thread else role] += seconds
        by_role["client"] = sum(_run_s(f"/proc/self/task/{thread.name}") for thread in _threads("self"))
        times = psutil.cpu_times()
        return cls(by_role, sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _threads(pid: int | str) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def _run_s(task: str) -> float:
    """Time on a CPU, from the scheduler's own clock (proc(5), schedstat)."""
    return int((Path(task) / "schedstat").read_text().split()[0]) / 1e9


def measure(server: Server, streams: int, tokens: int) -> dict[str, float]:
    before, started_at = CpuTimes.now(server), time.monotonic()
    first_at, last_at, events = drain_streams(server.port, streams, tokens)
    after, ended_at = CpuTimes.now(server), time.monotonic()
    total = streams * tokens
    used = {role: after.by_role[role] - before.by_role[role] for role in after.by_role}
    return {
        "tokens_per_s": total / (last_at - first_at),
        "events_per_token": events / total,
        "gpu_us_per_step": used["gpu"] / tokens * 1e6,
        "sum": sum(used.values()) / total * 1e6,
        "others": (after.all - before.all - sum(used.values())) / (ended_at - started_at),
        **{role: seconds / total * 1e6 for role, seconds in used.items()},
    }


HEADINGS = (
    "streams", "tokens/s", "SSE events/token", "CPU us/token: gpu", "text", "http", "sockets", "client", "in all",
    "gpu us/step", "other work, cores",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--tokens", type=int, default=0, help="tokens a stream; 0: about 200,000 tokens in all")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="configuration override, section.key=value")
    arguments = parser.parse_args()
    model = resolve(DEFAULT_MODEL, cache_dir(ModelConfig()))
    overrides = ("engine.runner=scripted", f"scheduler.max_num_seqs={max(arguments.streams)}", "log.level=warning",
                 "model.max_model_len=8192", "model.max_output_tokens=8000", *arguments.set)
    with Server(model, *overrides) as server:
        drain_streams(server.port, 8, 50)  # warm
        print("| " + " | ".join(HEADINGS) + " |\n|" + "---|" * len(HEADINGS))
        for streams in arguments.streams * arguments.repeat:
            tokens = arguments.tokens or max(100, min(6000, 200_000 // streams))
            row = measure(server, streams, tokens)
            parts = (f"{row[name]:.1f}" for name in ("gpu", "text", "http", "sockets", "client", "sum"))
            print(f"| {streams} | {row['tokens_per_s']:,.0f} | {row['events_per_token']:.2f} | {' | '.join(parts)} | "
                  f"{row['gpu_us_per_step']:,.0f} | {row['others']:.2f} |", flush=True)


if __name__ == "__main__":
    main()

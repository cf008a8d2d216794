"""What the edges between processes cost on this machine, in microseconds per operation (best of several rounds).

    python -m ops.bench.ipc_edges

Owns the measuring loops; never knows what is fast enough. Wake-up times are those between two processes, round trip
halved, median and 99th percentile.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable

from ipc.channel import Inbox, Outbox
from ipc.codec import ENCODER, TEXT_INBOX
from ipc.doorbell import Doorbell
from ipc.endpoints import inbox
from ipc.messages import Abort
from ipc.ring import RingReader, RingWriter, create_ring
from ipc.segment import Segment
from ipc.token_frame import TokenFrameWriter, unpack

ROUNDS = 30
FRAME = bytes(200)
RING_BYTES = 1 << 20


def best_us(action: Callable[[], object], count: int, between: Callable[[], object] = lambda: None) -> float:
    """Best mean over `count` calls; `between` runs outside the clock before each round."""
    best = float("inf")
    for _ in range(ROUNDS):
        between()
        start = time.perf_counter()
        for _ in range(count):
            action()
        best = min(best, time.perf_counter() - start)
    return best / count * 1e6


def report(what: str, us: float) -> None:
    print(f"{what:<44}{us:9.2f} us")


def bench_ring() -> None:
    segment, doorbell = create_ring("bench", RING_BYTES), Doorbell.create()
    writer = RingWriter(segment, doorbell)
    reader = RingReader(Segment.attach(os.dup(segment.fd), segment.size), doorbell)
    report("push, 200 bytes", best_us(lambda: writer.push(FRAME), 1000, reader.drain))
    report("drain, nothing there", best_us(reader.drain, 1000, reader.drain))
    report("drain, 64 x 200 bytes", best_us(reader.drain, 1, lambda: [writer.push(FRAME) for _ in range(64)]))
    report("push + ring", best_us(lambda: (writer.push(FRAME), writer.ring()), 500, reader.drain))
    report("doorbell ring + acknowledge", best_us(lambda: (doorbell.ring(), doorbell.acknowledge()), 1000))


def bench_token_frame() -> None:
    writer = TokenFrameWriter()
    ids = list(range(64))

    def one_by_one() -> bytes:
        for index in ids:
            writer.append(index, 0, index)
        return writer.to_bytes()

    def bulk() -> bytes:
        writer.extend(ids, 0, ids)
        return writer.to_bytes()

    frame = bulk()
    report("token frame, 64 x append + to_bytes", best_us(one_by_one, 50))
    report("token frame, extend(64) + to_bytes", best_us(bulk, 50))
    report("token frame, unpack 64", best_us(lambda: unpack(frame), 50))


def echo(here: Doorbell, there: Doorbell) -> None:
    while True:
        select.select([there], [], [])
        there.acknowledge()
        here.ring()


def bench_wake() -> None:
    here, there = Doorbell.create(), Doorbell.create()
    child = os.fork()
    if child == 0:
        echo(here, there)
    samples = []
    for _ in range(2000):
        start = time.perf_counter()
        there.ring()
        select.select([here], [], [])
        here.acknowledge()
        samples.append((time.perf_counter() - start) / 2 * 1e6)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    samples.sort()
    report("wake-up of another process, median", samples[len(samples) // 2])
    report("wake-up of another process, p99", samples[len(samples) * 99 // 100])


def bench_channel() -> None:
    with tempfile.TemporaryDirectory() as run_dir:
        endpoint = inbox(run_dir, "text-0", 1)
        receiver, sender = Inbox(endpoint, TEXT_INBOX), Outbox(endpoint, ENCODER)
        message = Abort(2**63)
        sender.send(message)
        receiver.poll(1.0)
        count = 1000
        report("inbox send (encode included)", best_us(lambda: sender.send(message), count, receiver.drain))
        received = len(receiver.drain())
        best = float("inf")
        for _ in range(ROUNDS):
            for _ in range(count):
                sender.send(message)
            start = time.perf_counter()
            received = 0
            while received < count:
                received += len(receiver.drain())
            best = min(best, time.perf_counter() - start)
        report("inbox receive (decode included)", best / count * 1e6)
        receiver.close()
        sender.close()


def main() -> int:
    bench_wake()
    bench_ring()
    bench_token_frame()
    bench_channel()
    return 0


if __name__ == "__main__":
    sys.exit(main())

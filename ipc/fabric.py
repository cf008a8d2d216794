"""All shared memory of one service run: the status board, the mask table and one ring per stream edge.

Owned by the supervisor, which alone creates it. Segments are memfds without names: nothing to unlink, nothing left
behind when the last process holding them is gone, however it went.

    gpu-0  -> text-t   token records     one ring per text worker
    text-t -> http-h   text deltas       one ring per pair
"""

from __future__ import annotations

from ipc.doorbell import Doorbell
from ipc.mask_table import MaskTable, rows_per_text_worker
from ipc.ring import create_ring
from ipc.segment import Segment
from ipc.status_board import StatusBoard
from ipc.worker_spec import RingSpec

# Holds the token records of 256 sequences for several hundred steps, or 20,000 SSE deltas, if a reader stalls.
RING_BYTES = 4 << 20


class Fabric:
    """The segments and doorbells; `rings_of` says which of them a worker inherits."""

    def __init__(self, workers: tuple[str, ...], max_num_seqs: int, vocab_size: int) -> None:
        self.workers = workers
        self.board = StatusBoard.create(len(workers))
        num_text_workers = sum(name.startswith("text-") for name in workers)
        num_rows = max(1, num_text_workers) * rows_per_text_worker(max_num_seqs)
        self.mask_table = MaskTable.create(num_rows, vocab_size)
        self._segments: list[Segment] = []
        self._doorbells: list[Doorbell] = []
        self.rings = tuple(self._ring(writer, reader) for writer, reader in stream_edges(workers))

    def rings_of(self, worker: str) -> tuple[RingSpec, ...]:
        return tuple(ring for ring in self.rings if worker in (ring.writer, ring.reader))

    def inherited_fds(self, worker: str) -> list[int]:
        """Descriptors to pass to `worker` at spawn."""
        fds = [self.board.fd, self.mask_table.fd]
        for ring in self.rings_of(worker):
            fds += [ring.segment_fd, ring.doorbell_fd]
        return fds

    def close(self) -> None:
        self.board.close()
        self.mask_table.close()
        for segment in self._segments:
            segment.close()
        for doorbell in self._doorbells:
            doorbell.close()

    def _ring(self, writer: str, reader: str) -> RingSpec:
        segment = create_ring(f"{writer}-{reader}", RING_BYTES)
        doorbell = Doorbell.create()
        self._segments.append(segment)
        self._doorbells.append(doorbell)
        return RingSpec(writer, reader, segment.fd, segment.size, doorbell.fd)


def stream_edges(workers: tuple[str, ...]) -> list[tuple[str, str]]:
    """(writer, reader) of every ring.

    >>> stream_edges(("gpu-0", "text-0", "http-0", "http-1"))
    [('gpu-0', 'text-0'), ('text-0', 'http-0'), ('text-0', 'http-1')]
    """
    by_role: dict[str, list[str]] = {"gpu": [], "text": [], "http": []}
    for name in workers:
        by_role[name.partition("-")[0]].append(name)
    edges = [(gpu, text) for gpu in by_role["gpu"] for text in by_role["text"]]
    return edges + [(text, http) for text in by_role["text"] for http in by_role["http"]]

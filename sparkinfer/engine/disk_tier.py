"""What the prefix tree had to give up, found again on disk. Knows nodes and files; never devices or requests' limits.

A block's name is a hash over the tokens from the beginning to its end, so that a name says all there is to know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from sparkinfer.engine.prefix_cache import PrefixCache
from sparkinfer.engine.prefix_disk import PrefixDisk
from sparkinfer.engine.prefix_node import PrefixNode
from sparkinfer.engine.scheduler_output import BlockLoad, DiskSave, SchedulerOutput, StateCopy
from sparkinfer.engine.sequence import NO_SLOT, BlockId, Sequence, SequenceStatus


@dataclass(slots=True, eq=False)
class _Load:
    depth: int                           # of the node that the first block hangs below
    names: list[str]                     # blocks in order; of recurrent models, the state behind the last one too
    payloads: Future[list[bytes]] | None  # None: the disk has nothing more of this sequence


class DiskTier:
    """Writes nodes that are evicted, and all of them at the end; reads back what a waiting sequence begins with.

    A node is written only once the steps that filled it are known to have run, and have led to a token.
    """

    def __init__(self, cache: PrefixCache, disk: PrefixDisk) -> None:
        self.completed_epoch = 0
        self.on_read: Callable[[], None] | None = None  # called by another thread when must_wait may have changed
        self._cache = cache
        self._disk = disk
        self._has_state = cache.snapshots is not None
        self._loads: dict[Sequence, _Load] = {}
        self._block_loads: list[BlockLoad] = []
        self._saves: list[DiskSave] = []
        cache.on_evict = lambda node: self._saves.extend(self._saves_of(node))

    def must_wait(self, sequence: Sequence, data: bytes, node: PrefixNode) -> bool:
        """Whether files are being read that continue `node` as the sequence does; the first call begins to."""
        load = self._loads.get(sequence)
        if load is None:
            names = self._found(data, node)
            payloads = self._disk.read(names) if names else None
            load = self._loads[sequence] = _Load(node.depth, names, payloads)
            if payloads is not None and self.on_read is not None:
                payloads.add_done_callback(self._tell)
        return load.payloads is not None and not load.payloads.done()

    def _tell(self, _payloads: Future[list[bytes]]) -> None:
        if self.on_read is not None:
            self.on_read()

    def graft(self, sequence: Sequence, data: bytes, allocate: Callable[[], BlockId | None]) -> list[StateCopy]:
        """Put what was read for a sequence into the tree; returns what makes its state a snapshot.

        allocate: one block with one reference, None when there is none.
        """
        load = self._loads.pop(sequence, None)
        if load is None or load.payloads is None or not load.payloads.done():
            return []
        payloads = load.payloads.result()
        node = self._cache.descend(data, sequence.hints.salt, load.depth)
        if node is None or (self._has_state and len(payloads) < len(load.names)):
            return []
        self._cache.lock(node)
        for payload in payloads[: len(payloads) - self._has_state]:
            block = allocate()
            if block is None:
                break
            node = self._insert(node, data, block, payload)
        copies = []
        if self._has_state and node.depth == load.depth + len(payloads) - 1 and node.snapshot is None:
            snapshot = self._cache.allocate_snapshot()
            if snapshot is not None:
                self._cache.attach(node, snapshot)
                copies.append(StateCopy(NO_SLOT, snapshot, restores=False, payload=payloads[-1]))
        self._cache.unlock(node)
        return copies

    def end_step(self, output: SchedulerOutput) -> None:
        """The step is complete: it gets its reads and writes."""
        output.disk_saves, self._saves = self._saves, []
        output.block_loads, self._block_loads = self._block_loads, []
        if self._loads:
            self._loads = {s: load for s, load in self._loads.items() if s.status == SequenceStatus.WAITING}

    def remaining_saves(self) -> Iterator[DiskSave]:
        """Everything that is not on disk, for the end of the service."""
        yield from self._saves
        self._saves.clear()
        for node in list(self._cache.nodes()):
            yield from self._saves_of(node)

    def flush(self) -> None:
        """Return when everything handed over so far is on disk."""
        self._disk.flush()

    def close(self) -> None:
        """Finish the writes."""
        self._disk.close()

    def _insert(self, node: PrefixNode, data: bytes, block: BlockId, payload: bytes) -> PrefixNode:
        width = self._cache.key_bytes
        child = self._cache.insert(node, data[node.depth * width : (node.depth + 1) * width], block)
        if child.block == block:
            self._block_loads.append(BlockLoad(block, payload))
        self._cache.give_back(block)
        return child

    def _found(self, data: bytes, node: PrefixNode) -> list[str]:
        width = self._cache.key_bytes
        digest, names, best = self._digest(node), [], []
        for start in range(node.depth * width, (len(data) - 4) // width * width, width):
            digest = _extend(digest, data[start : start + width])
            if not self._disk.has(f"{digest.hex()}.kv"):
                break
            names.append(f"{digest.hex()}.kv")
            if self._has_state and self._disk.has(f"{digest.hex()}.state"):
                best = [*names, f"{digest.hex()}.state"]
        return best if self._has_state else names

    def _saves_of(self, node: PrefixNode) -> Iterator[DiskSave]:
        if node.epoch > self.completed_epoch or node.is_suspect or not node.is_proven:
            return
        name = self._digest(node).hex()
        if not self._disk.has(f"{name}.kv"):
            yield DiskSave(node.block, None, partial(self._disk.write, f"{name}.kv"))
        if node.snapshot is not None and not self._disk.has(f"{name}.state"):
            yield DiskSave(None, node.snapshot, partial(self._disk.write, f"{name}.state"))

    def _digest(self, node: PrefixNode) -> bytes:
        missing = []
        while node.digest is None and node.parent is not None:
            missing.append(node)
            node = node.parent
        if node.digest is None:
            node.digest = _extend(b"", node.key)
        digest = node.digest
        for member in reversed(missing):
            digest = member.digest = _extend(digest, member.key)
        return digest


def _extend(digest: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(digest + key, digest_size=16).digest()

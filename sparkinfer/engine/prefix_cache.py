"""Which prefixes of past and running sequences are in the KV pool. Knows tokens, blocks and snapshots; never requests.

A tree over blocks of tokens. For a model with recurrent layers a prefix is of use only where there is a snapshot of
its state; for the others, at every block.
"""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparkinfer.config import PrefixCacheConfig
from sparkinfer.engine.block_manager import BlockManager, IntegrityError
from sparkinfer.engine.prefix_node import NO_BLOCK, PrefixNode
from sparkinfer.engine.sequence import BlockId
from sparkinfer.engine.snapshot_pool import SnapshotId, SnapshotPool

REMEMBERED_EVICTIONS = 1 << 16  # path hashes, about 8 MB; they only serve to explain a miss


@dataclass(slots=True)
class PrefixCacheStats:
    """Counts since the start."""

    num_lookups: int = 0
    num_hits: int = 0
    num_tokens_reused: int = 0
    num_evictions: int = 0               # blocks and snapshots given up for others


def token_key(token_ids: list[int]) -> bytes:
    """Token ids as nodes keep them: int32 in the machine's order."""
    return array("i", token_ids).tobytes()


class PrefixCache:
    """The tree holds one reference to each of its blocks; sequences that share a block hold their own.

    Invariant: a node with users == 0 has no descendant with users > 0, so all `num_evictable` blocks can be had by
    taking leaves. Least recently used leaves go first. Thread: the Scheduler's.
    """

    def __init__(
        self, config: PrefixCacheConfig, block_manager: BlockManager, snapshots: SnapshotPool | None = None
    ) -> None:
        """snapshots: given for models with recurrent layers."""
        self.config = config
        self.stats = PrefixCacheStats()
        self.snapshots = snapshots
        self.epoch = 0                       # steps scheduled so far
        self.num_evictable = 0               # blocks that no running sequence uses
        self.num_nodes = 0
        self.num_leaves = 0
        self._block_manager = block_manager
        self.key_bytes = 4 * block_manager.block_size
        self.on_evict: Callable[[PrefixNode], None] | None = None  # told before a block or snapshot makes room
        self._roots: dict[bytes, PrefixNode] = {}
        self._clock = 0
        self._candidates: list[tuple[int, int, PrefixNode]] = []  # heap by last use; stale entries are skipped
        self._num_pushed = 0
        self._snapshot_nodes: OrderedDict[PrefixNode, None] = OrderedDict()  # least recently used first
        self._evicted: OrderedDict[int, None] = OrderedDict()

    @property
    def num_entries(self) -> int:
        """Beginnings that can be resumed at their end: leaves, or nodes with a snapshot where that takes one."""
        return self.num_leaves if self.snapshots is None else len(self._snapshot_nodes)

    @property
    def num_host_bytes(self) -> int:
        """Bytes of snapshots."""
        return 0 if self.snapshots is None else self.snapshots.num_used * self.snapshots.bytes_per_snapshot

    def root(self, salt: bytes) -> PrefixNode:
        """Where the prefixes of one salt begin."""
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = PrefixNode(None, salt, NO_BLOCK, hash(salt))
        return root

    def match(self, data: bytes, salt: bytes) -> PrefixNode:
        """The deepest node from which a sequence can be resumed, its last token being left to compute.

        data: token_key of all its tokens.
        """
        width, has_state = self.key_bytes, self.snapshots is not None
        node = resumable = self.root(salt)
        for start in range(0, (len(data) - 4) // width * width, width):
            child = node.children.get(data[start : start + width])
            if child is None or child.is_suspect:
                break
            node = child
            if node.snapshot is not None:
                resumable = node
        return resumable if has_state else node

    def descend(self, data: bytes, salt: bytes, depth: int) -> PrefixNode | None:
        """The node behind the first `depth` blocks, None when it is not there."""
        node, width = self.root(salt), self.key_bytes
        for start in range(0, depth * width, width):
            child = node.children.get(data[start : start + width])
            if child is None:
                return None
            node = child
        return node

    def give_back(self, block: BlockId) -> None:
        """The caller of `insert` has no further use for a block."""
        self._block_manager.free([block])

    def lock(self, node: PrefixNode) -> None:
        """A sequence's tokens begin with this path: nothing of it may be evicted."""
        for member in node.path():
            if member.users == 0:
                self.num_evictable -= 1
            member.users += 1

    def unlock(self, node: PrefixNode) -> None:
        """Take back one `lock`, or the lock that `insert` took."""
        self._clock += 1
        suspect = None
        for member in node.path():
            member.users -= 1
            member.last_used = self._clock
            if member.users == 0:
                self.num_evictable += 1
                suspect = member if member.is_suspect else suspect
        if self.snapshots is not None:
            node = self._prune(node)
        self._offer(node)
        if suspect is not None:
            self.forget(suspect)

    def insert(self, parent: PrefixNode, key: bytes, block: BlockId) -> PrefixNode:
        """The child of a locked node for one more block of tokens; the lock now reaches to the child.

        block: holds these tokens, and is held by the caller. The child keeps it unless a running sequence uses the one
        that it has, so that a lock never costs blocks beyond those which its owner holds anyway.
        """
        child = parent.children.get(key)
        if child is None:
            path_hash = hash((parent.path_hash, key))
            child = PrefixNode(parent, key, block, path_hash, self.epoch + 1)
            self._block_manager.share(block)
            self.num_leaves += bool(parent.children) or parent.parent is None
            parent.children[key] = child
            self.num_nodes += 1
        elif child.users == 0:
            self.num_evictable -= 1
            self._block_manager.share(block)
            self._block_manager.free([child.block])
            child.block, child.epoch = block, self.epoch + 1
        child.users += 1
        return child

    def attach(self, node: PrefixNode, snapshot: SnapshotId) -> None:
        """Give a node the state behind its tokens; a snapshot that it has already is given back."""
        assert self.snapshots is not None
        if node.snapshot is not None:
            self.snapshots.free(node.snapshot)
        node.snapshot = snapshot
        node.epoch = self.epoch + 1
        self._snapshot_nodes[node] = None
        self._snapshot_nodes.move_to_end(node)

    def touch(self, node: PrefixNode) -> None:
        """The node's snapshot was used."""
        if node.snapshot is not None:
            self._snapshot_nodes.move_to_end(node)

    def allocate_snapshot(self) -> SnapshotId | None:
        """A free snapshot, if need be the least recently used one, of those that no running sequence has first.

        None when all are held by answers that are not at their end.
        """
        assert self.snapshots is not None
        snapshot = self.snapshots.allocate()
        if snapshot is None and self._snapshot_nodes:
            oldest = next(iter(self._snapshot_nodes))
            node = next((node for node in self._snapshot_nodes if not node.users), oldest)
            if self.on_evict is not None:
                self.on_evict(node)
            self._drop_snapshot(node)
            self.stats.num_evictions += 1
            self._offer(self._prune(node))
            snapshot = self.snapshots.allocate()
        return snapshot

    def evict_block(self) -> bool:
        """Give up the least recently used leaf; False when there is none."""
        while self._candidates:
            last_used, _, node = heapq.heappop(self._candidates)
            if node.is_alive and last_used == node.last_used and node.users == 0 and not node.children:
                parent = node.parent
                assert parent is not None
                if self.on_evict is not None:
                    self.on_evict(node)
                self._remember(node)
                self._remove(node)
                self.stats.num_evictions += 1
                self._offer(parent)
                return True
        return False

    def was_evicted(self, node: PrefixNode, key: bytes) -> bool:
        """Whether a child of `node` was there and had to go."""
        return hash((node.path_hash, key)) in self._evicted

    def forget(self, node: PrefixNode, is_suspect: bool = False) -> None:
        """Remove a node and all below it; while a running sequence uses it, its snapshot alone.

        is_suspect: its block is not to be trusted either, so that it goes as soon as that is possible
        """
        if not node.is_alive or node.parent is None:
            return
        if node.users:
            self._drop_snapshot(node)
            node.is_suspect |= is_suspect
            return
        below = [node]
        for member in below:
            below += member.children.values()
        for member in reversed(below):
            self._remove(member)
        self._offer(node.parent)

    def nodes(self) -> Iterator[PrefixNode]:
        """Every node but the roots, parents first."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack += node.children.values()

    def check_integrity(self, held_snapshots: list[SnapshotId]) -> None:
        """Raise IntegrityError unless counts, locks and snapshots balance.

        held_snapshots: those of running sequences.
        """
        nodes = list(self.nodes())
        evictable = sum(node.users == 0 for node in nodes)
        leaves = sum(not node.children for node in nodes)
        if (len(nodes), evictable, leaves) != (self.num_nodes, self.num_evictable, self.num_leaves):
            raise IntegrityError(
                f"prefix cache: {len(nodes)} nodes, {evictable} evictable, {leaves} leaves; "
                f"counted {self.num_nodes}, {self.num_evictable}, {self.num_leaves}"
            )
        for node in nodes:
            if node.parent is not None and node.parent.parent is not None and node.users > node.parent.users:
                raise IntegrityError(f"prefix cache: {node.users} users below {node.parent.users}")
        if self.snapshots is not None:
            cached = [node.snapshot for node in nodes if node.snapshot is not None]
            self.snapshots.check_integrity([*cached, *held_snapshots])

    def _offer(self, node: PrefixNode) -> None:
        """Let a node be evicted, if it can be."""
        if node.parent is not None and node.users == 0 and not node.children and node.is_alive:
            self._num_pushed += 1
            heapq.heappush(self._candidates, (node.last_used, self._num_pushed, node))

    def _prune(self, node: PrefixNode) -> PrefixNode:
        """Remove what no later sequence could resume from, upwards from a leaf; returns the last node left."""
        while node.parent is not None and node.users == 0 and not node.children and node.snapshot is None:
            parent = node.parent
            self._remove(node)
            node = parent
        return node

    def _remove(self, node: PrefixNode) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        node.is_alive = False
        self.num_nodes -= 1
        self.num_evictable -= 1
        self.num_leaves -= bool(parent.children) or parent.parent is None
        self._drop_snapshot(node)
        self._block_manager.free([node.block])

    def _drop_snapshot(self, node: PrefixNode) -> None:
        if node.snapshot is not None:
            assert self.snapshots is not None
            self.snapshots.free(node.snapshot)
            node.snapshot = None
            del self._snapshot_nodes[node]

    def _remember(self, node: PrefixNode) -> None:
        self._evicted[node.path_hash] = None
        if len(self._evicted) > REMEMBERED_EVICTIONS:
            self._evicted.popitem(last=False)

"""A node of the prefix tree. Knows its block and its neighbours; never sequences or policies."""

from __future__ import annotations

from collections.abc import Iterator

from sparkinfer.engine.sequence import BlockId
from sparkinfer.engine.snapshot_pool import SnapshotId

NO_BLOCK = BlockId(-1)


class PrefixNode:
    """One block of tokens behind all the blocks of its ancestors; a root stands for no tokens.

    epoch is the step from which on block and snapshot hold what they should.
    users counts the running sequences whose tokens begin with this path (and pins), so it never grows downwards.
    is_proven: a token was sampled behind it, so that it holds no NaN. Chunks of a prompt alone do not show theirs.
    is_suspect: whoever computed it failed; nobody may resume behind it, and it goes with its last user.
    """

    __slots__ = ("block", "children", "depth", "digest", "epoch", "is_alive", "is_proven", "is_suspect", "key",
                 "last_used", "parent", "path_hash", "snapshot", "users")

    def __init__(self, parent: PrefixNode | None, key: bytes, block: BlockId, path_hash: int, epoch: int = 0) -> None:
        """key: the tokens of this block, int32; for a root, the salt."""
        self.parent = parent
        self.key = key
        self.block = block
        self.path_hash = path_hash
        self.depth: int = 0 if parent is None else parent.depth + 1  # blocks from the root to here, this one included
        self.children: dict[bytes, PrefixNode] = {}
        self.snapshot: SnapshotId | None = None
        self.epoch = epoch
        self.digest: bytes | None = None  # names the path beyond this process; made when first asked for
        self.users = 0
        self.last_used = 0
        self.is_alive = True
        self.is_proven = False
        self.is_suspect = False

    def path(self) -> Iterator[PrefixNode]:
        """This node and its ancestors without the root, deepest first."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def prove(self) -> None:
        """A token was sampled behind this node."""
        for node in self.path():
            if node.is_proven:
                return
            node.is_proven = True

    def blocks(self) -> list[BlockId]:
        """The blocks from the root to here, in the order of their tokens."""
        blocks = [node.block for node in self.path()]
        blocks.reverse()
        return blocks

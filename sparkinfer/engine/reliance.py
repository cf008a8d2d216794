"""Who relies on blocks that steps still in flight are to fill. Knows steps by number; never what is in a block."""

from __future__ import annotations

from sparkinfer.engine.prefix_node import PrefixNode
from sparkinfer.engine.sequence import Sequence, SequenceStatus


class Reliance:
    """Sequences by the last step whose work they share, until that step is known to have run.

    It outlives preemption: a token that was sampled on wrong blocks is wrong wherever its sequence is by now.
    """

    def __init__(self) -> None:
        self.completed_epoch = 0
        self._epochs: dict[Sequence, int] = {}

    def note(self, sequence: Sequence, node: PrefixNode) -> None:
        """The sequence resumes behind `node`."""
        epoch = max((member.epoch for member in node.path()), default=0)
        if epoch > self.completed_epoch:
            self._epochs[sequence] = max(epoch, self._epochs.get(sequence, 0))

    def complete(self, epoch: int) -> None:
        """The step has run, or all who relied on it have been told that it did not."""
        self.completed_epoch = epoch
        if self._epochs:
            self._epochs = {sequence: last for sequence, last in self._epochs.items() if last > epoch}

    def on(self, epoch: int) -> list[Sequence]:
        """Open sequences that rely on this step or a later one."""
        return [
            sequence for sequence, last in self._epochs.items()
            if last >= epoch and sequence.status != SequenceStatus.FINISHED
        ]

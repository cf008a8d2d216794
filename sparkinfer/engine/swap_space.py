"""Which preempted sequences keep what they computed, in host memory. Knows bytes and ids; never tensors.

Swapping pays where copying out and back is cheaper than computing again. Recurrent state always is: it can be had
only by computing every token in order. Keys and values are from MIN_SWAP_TOKENS on.
"""

from __future__ import annotations

from sparkinfer.engine.block_manager import IntegrityError
from sparkinfer.engine.scheduler_output import SchedulerOutput, SwapId, SwapIn, SwapOut
from sparkinfer.engine.sequence import Sequence, SequenceStatus

# A swap out and in launches about 200 copies, 10 us each (48 layers, keys and values, gather and transfer): 2 ms, in
# which an H200 prefills some 100 tokens of a 30B mixture of experts. The bytes cost less: 100 kB a token over 50 GB/s.
MIN_SWAP_TOKENS = 128


class SwapSpace:
    """At most num_bytes of host memory. Orders to the runner travel in the next step that has rows.

    In a step all swap-outs come before its state copies, and all swap-ins behind those: what is read is what earlier
    steps left, and what is written is what the step's own rows find. A sequence holds an entry from `try_swap_out`
    until the step that carries its swap-in, or until `drop`.
    """

    def __init__(
        self, num_bytes: int, bytes_per_block: int, bytes_per_state: int, min_tokens: int = MIN_SWAP_TOKENS
    ) -> None:
        """bytes_per_state: recurrent state of one sequence, 0 when the model has none: then min_tokens counts."""
        self.num_free_bytes = num_bytes
        self.num_swap_outs = 0
        self._num_bytes = num_bytes
        self._bytes_per_block = bytes_per_block
        self._bytes_per_state = bytes_per_state
        self._min_tokens = 1 if bytes_per_state else min_tokens
        self._entries: dict[Sequence, tuple[SwapId, int]] = {}   # and its bytes
        self._outs: list[SwapOut] = []
        self._ins: list[SwapIn] = []
        self._drops: list[SwapId] = []

    def try_swap_out(self, sequence: Sequence, block_size: int) -> bool:
        """Keep what a running sequence has computed, if that is worth it and there is room.

        A sequence that was to come back in this very step just stays out.
        """
        if sequence in self._entries:
            self._ins = [order for order in self._ins if order.sequence is not sequence]
            return True
        num_tokens = sequence.num_computed_tokens
        if sequence.is_new_in_slot or num_tokens < self._min_tokens:
            return False
        num_blocks = -(-num_tokens // block_size)
        num_bytes = num_blocks * self._bytes_per_block + self._bytes_per_state
        if num_bytes > self.num_free_bytes:
            return False
        swap_id = SwapId(self.num_swap_outs)
        self.num_swap_outs += 1
        self.num_free_bytes -= num_bytes
        self._entries[sequence] = (swap_id, num_bytes)
        sequence.num_swapped_tokens = num_tokens
        self._outs.append(SwapOut(sequence, swap_id, sequence.slot, tuple(sequence.block_table[:num_blocks])))
        return True

    def swap_in(self, sequence: Sequence, block_size: int) -> None:
        """The sequence has a slot and blocks again: what it computed counts as computed."""
        num_blocks = -(-sequence.num_swapped_tokens // block_size)
        sequence.num_computed_tokens = sequence.num_swapped_tokens
        swap_id, _ = self._entries[sequence]
        self._ins.append(SwapIn(sequence, swap_id, sequence.slot, tuple(sequence.block_table[:num_blocks])))

    def drop(self, sequence: Sequence) -> None:
        """A sequence has ended; nothing happens when it holds no entry."""
        if sequence not in self._entries:
            return
        swap_id = self._forget(sequence)
        if any(order.sequence is sequence for order in self._outs):
            self._outs = [order for order in self._outs if order.sequence is not sequence]
        else:
            self._drops.append(swap_id)
        self._ins = [order for order in self._ins if order.sequence is not sequence]

    def end_step(self, output: SchedulerOutput) -> None:
        """Hand the orders to a step that will be launched; without rows it will not be."""
        if not output.scheduled:
            return
        output.swap_outs, self._outs = self._outs, []
        output.swap_ins, self._ins = self._ins, []
        output.swap_drops, self._drops = self._drops, []
        for order in output.swap_ins:
            self._forget(order.sequence)

    def victims_of(self, output: SchedulerOutput) -> list[Sequence]:
        """Sequences that came back with copies, or are told to with ones, that a failed step did not make.

        Whatever else is out is computed again: a later step may have copied what the failed one left undone.
        """
        for sequence in list(self._entries):
            if sequence.status == SequenceStatus.WAITING:
                self.drop(sequence)
        returned = [order.sequence for order in output.swap_outs]
        return [
            sequence
            for sequence in [*returned, *(order.sequence for order in output.swap_ins)]
            if sequence.status == SequenceStatus.RUNNING
        ]

    def forget(self, output: SchedulerOutput) -> None:
        """The step failed: the copies that it should have brought back or dropped are dropped by the next one."""
        self._drops += [*output.swap_drops, *(order.swap_id for order in output.swap_ins)]

    def check_integrity(self) -> None:
        """Raise IntegrityError if bytes are lost or owed to a sequence that has ended."""
        num_bytes = sum(num_bytes for _, num_bytes in self._entries.values())
        if num_bytes + self.num_free_bytes != self._num_bytes or self.num_free_bytes < 0:
            raise IntegrityError(f"swap: {num_bytes} bytes used, {self.num_free_bytes} free != {self._num_bytes}")
        if not all(sequence.num_swapped_tokens for sequence in self._entries):
            raise IntegrityError("a sequence that is not swapped out holds swap space")

    def _forget(self, sequence: Sequence) -> SwapId:
        swap_id, num_bytes = self._entries.pop(sequence)
        self.num_free_bytes += num_bytes
        sequence.num_swapped_tokens = 0
        return swap_id

"""Who computes how many tokens in the next step. Knows tokens, blocks and slots; never devices, text or processes."""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.admission_control import AdmissionControl
from sparkinfer.engine.block_manager import BlockManager, IntegrityError
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence, SchedulerOutput, StepResult
from sparkinfer.engine.sequence import NO_SLOT, BlockId, Sequence, SequenceStatus, SlotId
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.engine.waiting_queue import WaitingQueue
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason, RequestId

_ORDER = attrgetter("order")


class Scheduler:
    """Continuous batching over paged KV; one thread calls it.

    `schedule` of step k + 1 may run before `update` of step k, to any depth: a decode row does not need the value of
    the token it feeds, which stays on the device. This is right because
    - steps run in the order of their launch, so blocks and slots can change owner as soon as the host decides it;
    - lengths are known in advance, so nothing is scheduled beyond max_output_tokens;
    - a row of a sequence that turns out to have ended is dropped in `update`;
    - a preempted sequence is admitted again only when the host knows all its tokens.

    `running` is sorted best first. A sequence gets the blocks of all its known tokens on admission, so that only
    decode rows grow; they are scheduled from the front, and victims are taken from the back. Hence a victim is never
    a part of the step being scheduled, and the front sequence always advances.
    """

    def __init__(self, config: SchedulerConfig, block_manager: BlockManager, max_model_len: int) -> None:
        """max_model_len: most tokens of a prompt and its output together."""
        self._config = config
        self._block_manager = block_manager
        capacity_tokens = block_manager.num_blocks * block_manager.block_size
        self._admission_control = AdmissionControl(max_model_len, capacity_tokens, config.max_queue_depth)
        self._free_slots = [SlotId(slot) for slot in range(config.max_num_seqs - 1, -1, -1)]
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []
        self._open: dict[RequestId, list[Sequence]] = {}
        self._arrivals: deque[Sequence] = deque()
        self._num_arrived = 0
        self._events = StepEvents()
        self.num_waiting = 0
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_free_blocks(self) -> int:
        return self._block_manager.num_free_blocks

    @property
    def num_open_requests(self) -> int:
        return len(self._open)

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def take_events(self) -> StepEvents:
        """What happened since the last call."""
        events, self._events = self._events, StepEvents()
        return events

    def add(self, sequences: list[Sequence], now: float) -> None:
        """Queue the choices of one request, or end all of them with the error that says why not."""
        num_open_requests = len(self._open)
        self._open[sequences[0].request_id] = list(sequences)
        self.num_waiting += len(sequences)
        try:
            self._admission_control.check(sequences[0].num_prompt_tokens, num_open_requests)
        except RequestError as error:
            for sequence in sequences:
                self._fail(sequence, now, error.status, error.code, error.message)
            return
        for sequence in sequences:
            sequence.max_output_tokens = self._admission_control.max_output_tokens(
                sequence.num_prompt_tokens, sequence.sampling.max_tokens
            )
            sequence.arrival_number = self._num_arrived
            self._num_arrived += 1
            self._waiting.push(sequence)
            if self._config.request_timeout_s:
                self._arrivals.append(sequence)
        self._events.queued.append(sequences[0])

    def schedule(self) -> SchedulerOutput:
        """Choose the next step: one token for every decoding sequence, then chunks of prompts, best first.

        Empty when nothing can run before an `update`. Counters of the scheduled sequences advance at once.
        """
        output = SchedulerOutput()
        prefilling = self._schedule_decodes(output)
        for sequence in prefilling:
            self._schedule_chunk(output, sequence)
        if not output.num_preempted:
            self._admit(output)
        self.num_preemptions += output.num_preempted
        return output

    def update(self, output: SchedulerOutput, result: StepResult, now: float) -> None:
        """Take in what `output` sampled; calls come in the order of the `schedule` calls."""
        events = self._events
        first = len(events.sequences)
        rows = output.sampling_rows
        for nan_row in result.nan_rows:
            self._fail(rows[nan_row].sequence, now, 500, "nan_logits", "The model's output was not a number.")
        for row, token_id in zip(rows, result.token_ids):
            sequence = row.sequence
            if sequence.status == SequenceStatus.FINISHED:
                continue
            if sequence.first_token_at is None:
                sequence.first_token_at = now
            if token_id in sequence.stop_token_ids:
                self._finish(sequence, FinishReason.STOP, now)
                continue
            sequence.output_token_ids.append(token_id)
            events.sequences.append(sequence)
            events.token_ids.append(token_id)
            if len(sequence.output_token_ids) >= sequence.max_output_tokens:
                self._finish(sequence, FinishReason.LENGTH, now)
        if result.logprobs is not None or events.logprobs is not None:
            by_sequence = {row.sequence: logprobs for row, logprobs in zip(rows, result.logprobs or ())}
            events.logprobs = events.logprobs or [None] * first
            events.logprobs += [by_sequence.get(sequence) for sequence in events.sequences[first:]]

    def fail(self, output: SchedulerOutput, now: float, status_code: int, code: str, message: str) -> None:
        """End every sequence of a step that could not run; takes the place of `update` for that step."""
        for row in output.scheduled:
            self._fail(row.sequence, now, status_code, code, message)

    def abort(self, request_id: RequestId, now: float, choice: int = -1) -> None:
        """End what is left of a request, or one choice of it (-1: all); an unknown id is ignored."""
        for sequence in list(self._open.get(request_id, ())):
            if choice in (-1, sequence.choice):
                self._finish(sequence, FinishReason.ABORT, now)

    def requests_of(self, reply_to: int) -> list[RequestId]:
        """Open requests whose results go to `reply_to`."""
        return [request_id for request_id, choices in self._open.items() if choices[0].reply_to == reply_to]

    def expire(self, now: float) -> None:
        """End every sequence that is older than request_timeout_s, waiting or running."""
        timeout_s = self._config.request_timeout_s
        while self._arrivals:
            oldest = self._arrivals[0]
            if oldest.status != SequenceStatus.FINISHED and now - oldest.arrived_at < timeout_s:
                break
            message = f"The request took longer than {timeout_s:g} s."
            self._fail(self._arrivals.popleft(), now, 504, "request_timeout", message)

    def check_integrity(self) -> None:
        """Raise IntegrityError if a block, a slot or a sequence is lost or has two owners."""
        self._block_manager.check_integrity(sequence.block_table for sequence in self._running)
        slots = {sequence.slot for sequence in self._running} | set(self._free_slots)
        if not len(slots) == len(self._running) + len(self._free_slots) == self._config.max_num_seqs:
            raise IntegrityError(f"slots: {len(self._running)} taken, {len(self._free_slots)} free, {len(slots)} known")
        num_open = sum(map(len, self._open.values()))
        if num_open != len(self._running) + self.num_waiting:
            raise IntegrityError(f"{num_open} sequences open, {len(self._running)} run, {self.num_waiting} wait")

    def _schedule_decodes(self, output: SchedulerOutput) -> list[Sequence]:
        """One token for every sequence whose known tokens are computed; returns the others, for chunks."""
        prefilling: list[Sequence] = []
        budget = self._config.max_num_batched_tokens
        block_size = self._block_manager.block_size
        scheduled = output.scheduled
        for sequence in self._running:  # NOTE: preemption shortens this list from its end while it is walked
            start = sequence.num_computed_tokens
            if start < sequence.num_prefill_tokens:
                prefilling.append(sequence)
                continue
            if sequence.num_sampled_tokens >= sequence.max_output_tokens:
                continue
            if len(scheduled) >= budget:
                break
            num_blocks = len(sequence.block_table)
            new_blocks: tuple[BlockId, ...] = ()
            if start >= num_blocks * block_size:
                if not self._make_room(sequence, output):
                    break
                new_blocks = tuple(self._block_manager.allocate(1))
                sequence.block_table.extend(new_blocks)
            scheduled.append(
                ScheduledSequence(sequence, sequence.slot, start, 1, None, num_blocks, new_blocks, True)
            )
            sequence.num_computed_tokens = start + 1
            sequence.num_sampled_tokens += 1
        output.num_tokens = len(scheduled)
        return prefilling

    def _make_room(self, sequence: Sequence, output: SchedulerOutput) -> bool:
        """Free a block for `sequence` by preempting from the back; False when that took `sequence` itself."""
        while not self._block_manager.can_allocate(1):
            victim = self._running.pop()
            self._release(victim)
            victim.status = SequenceStatus.WAITING
            victim.num_computed_tokens = 0
            victim.num_preemptions += 1
            self._waiting.push(victim)
            self.num_waiting += 1
            output.num_preempted += 1
            if victim is sequence:
                return False
        return True

    def _schedule_chunk(self, output: SchedulerOutput, sequence: Sequence, admitted: Admission | None = None) -> None:
        """The next tokens of a prompt, as many as the limits of the step leave; maybe none."""
        start = sequence.num_computed_tokens
        remaining = sequence.num_prefill_tokens - start
        budget = self._config.max_num_batched_tokens - output.num_tokens
        num_tokens = min(remaining, self._config.prefill_chunk_tokens, budget)
        if num_tokens <= 0:
            return
        samples = num_tokens == remaining
        first_new_block = len(sequence.block_table) if admitted is None else 0
        new_blocks = tuple(sequence.block_table[first_new_block:])
        token_ids = sequence.token_ids(start, start + num_tokens)
        output.scheduled.append(
            ScheduledSequence(
                sequence, sequence.slot, start, num_tokens, token_ids, first_new_block, new_blocks, samples, admitted
            )
        )
        output.num_tokens += num_tokens
        sequence.num_computed_tokens = start + num_tokens
        sequence.num_sampled_tokens += samples

    def _admit(self, output: SchedulerOutput) -> None:
        """Give slots and blocks to waiting sequences, best first, while the step has room for their tokens.

        One free block per running sequence is left: what was admitted runs for a block's length before it can be
        preempted by the others' growth.
        """
        while self._free_slots and output.num_tokens < self._config.max_num_batched_tokens:
            sequence = self._waiting.head()
            if sequence is None or sequence.has_tokens_in_flight:
                return
            num_blocks = self._block_manager.num_blocks_for(sequence.num_tokens)
            if not self._block_manager.can_allocate(num_blocks + len(self._running)):
                return
            self._waiting.pop()
            self.num_waiting -= 1
            sequence.status = SequenceStatus.RUNNING
            sequence.slot = self._free_slots.pop()
            sequence.block_table = self._block_manager.allocate(num_blocks)
            sequence.num_prefill_tokens = sequence.num_tokens
            insort(self._running, sequence, key=_ORDER)
            admitted = Admission(sequence.sampling, sequence.prompt_token_ids, tuple(sequence.output_token_ids))
            self._schedule_chunk(output, sequence, admitted)

    def _fail(self, sequence: Sequence, now: float, status_code: int, code: str | None, message: str) -> None:
        if sequence.status != SequenceStatus.FINISHED:
            sequence.status_code, sequence.code, sequence.message = status_code, code, message
            self._finish(sequence, FinishReason.ERROR, now)

    def _finish(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        if sequence.status == SequenceStatus.RUNNING:
            self._running.remove(sequence)
            self._release(sequence)
        else:
            self.num_waiting -= 1
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        sequence.finished_at = now
        self._events.finished.append(sequence)
        choices = self._open[sequence.request_id]
        choices.remove(sequence)
        if not choices:
            del self._open[sequence.request_id]

    def _release(self, sequence: Sequence) -> None:
        self._block_manager.free(sequence.block_table)
        self._free_slots.append(sequence.slot)
        sequence.block_table = []
        sequence.slot = NO_SLOT

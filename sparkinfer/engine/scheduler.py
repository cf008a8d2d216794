"""Who computes how many tokens in the next step. Knows tokens, blocks and slots; never devices, text or processes."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.admission_control import AdmissionControl
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.open_requests import OpenRequests
from sparkinfer.engine.placement import Placement
from sparkinfer.engine.scheduler_output import SchedulerOutput, StepResult, is_sound, mark_late, row_errors
from sparkinfer.engine.sequence import BlockId, Sequence, SequenceStatus
from sparkinfer.engine.step_builder import StepBuilder
from sparkinfer.engine.step_events import OutputTokens, StepEvents
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

    def __init__(self, config: SchedulerConfig, cache: CacheManager, max_model_len: int) -> None:
        """cache: manages the runner's blocks. max_model_len: most tokens of a prompt and its output together."""
        self._cache, self.prefix_cache = cache, cache.prefix_cache
        self._admission_control = AdmissionControl(config, max_model_len, cache.num_blocks * cache.block_size)
        self._placement = Placement(self._cache, config.max_num_seqs, config.admission == "reserve")
        self._step = StepBuilder(config, cache.prompt_grid)
        self.output_tokens = OutputTokens(cache.block_size)
        self._waiting = WaitingQueue(self._cache.should_wait)
        self._running: list[Sequence] = []
        self.open_requests = OpenRequests()
        self._num_arrived = 0
        self._num_tried = 0                # arrivals before this number have had a chance to start
        self._has_room = True              # nobody waits for blocks or a slot
        self._may_start = True             # nothing has kept the best waiting sequence from it since anything changed
        self._events = StepEvents()
        self.num_preemptions = self.num_swap_outs = 0  # the latter kept what was computed
        self.num_admission_waits = 0       # requests that could not start in the first step after their arrival
        self.num_admission_wait_timeouts = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return self.open_requests.num_waiting_sequences

    @property
    def num_free_blocks(self) -> int:
        return self._cache.num_free_blocks

    @property
    def num_open_requests(self) -> int:
        return len(self.open_requests)

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def take_events(self) -> StepEvents:
        """What happened since the last call."""
        events, self._events = self._events, StepEvents()
        return events

    def add(self, sequences: list[Sequence], now: float) -> None:
        """Queue the choices of one request, or end all of them with the error that says why not."""
        num_open_requests = len(self.open_requests)
        self.open_requests.add(sequences)
        try:
            first = sequences[0]
            self._admission_control.check(first.num_prompt_tokens, first.sampling.max_tokens, num_open_requests)
        except RequestError as error:
            for sequence in sequences:
                self._fail(sequence, now, error)
            return
        for sequence in sequences:
            sequence.max_output_tokens = self._admission_control.max_output_tokens(
                sequence.num_prompt_tokens, sequence.sampling.max_tokens
            )
            sequence.arrival_number = self._num_arrived
            self._num_arrived += 1
            self._waiting.fair_share.enter(sequence.client_id)
            self._waiting.push(sequence)
        self._may_start = True
        self._admission_control.deadlines.add(sequences)

    def schedule(self) -> SchedulerOutput:
        """Choose the next step: one token for every decoding sequence and chunks of prompts, as the policy has it.

        Empty when nothing can run before an `update`. Counters of the scheduled sequences advance at once.
        """
        output = self._step.begin()
        if self._step.is_strict:
            self._admit_urgent()
        self._schedule_running()
        if not output.num_preempted:
            self._admit()
        self._placement.end_step(output)
        self.num_preemptions += output.num_preempted
        self.num_swap_outs += len(output.swap_outs)
        self._num_tried = self._num_arrived
        return output

    def update(self, output: SchedulerOutput, result: StepResult, now: float) -> None:
        """Take in what `output` sampled; calls come in the order of the `schedule` calls."""
        self._cache.complete(output)
        events, rows, late = self._events, output.sampling_rows, set(result.late_rows)
        for row, error in row_errors(output, result):
            self._fail(row.sequence, now, error)
        mark_late(output, result)
        events.add_scores(output, result, now)  # before a first token that ends its sequence
        for number, (row, token_id) in enumerate(zip(rows, result.token_ids)):
            sequence = row.sequence
            if row.is_stale or number in late:
                continue
            if sequence.first_token_at is None:
                sequence.first_token_at = now
                self._cache.prove(sequence)
            reason = self.output_tokens.take(sequence, token_id, events)
            if reason is not None:
                self._finish(sequence, reason, now)
        events.add_logprobs(rows, result.logprobs)
        for sequence in output.ends:
            if sequence.status != SequenceStatus.FINISHED:
                self._finish(sequence, FinishReason.LENGTH, now)

    def fail(self, output: SchedulerOutput, now: float, status_code: int, code: str, message: str) -> None:
        """End every sequence of a step that could not run, and those that rely on it; in place of `update`."""
        victims = self._placement.victims_of(output)
        for sequence in [*(row.sequence for row in output.rows), *victims]:
            self._fail(sequence, now, RequestError(status_code, message, code=code))
        self._cache.forget(output)

    def abort(self, request_id: RequestId, now: float, choice: int = -1) -> None:
        """End what is left of a request, or one choice of it (-1: all); an unknown id is ignored."""
        for sequence in self.open_requests.choices(request_id):
            if choice in (-1, sequence.choice):
                self._finish(sequence, FinishReason.ABORT, now)

    def expire(self, now: float) -> None:
        """End what is too old or has waited too long, and tell those that wait on that they are accepted."""
        for sequence, error in self._admission_control.deadlines.timed_out(now):
            self._fail(sequence, now, error)
        for first, error in self._admission_control.deadlines.waited_out(now, self._has_room, self._num_tried):
            self.num_admission_waits += 1
            self.num_admission_wait_timeouts += 1
            for sequence in self.open_requests.choices(first.request_id):
                self._fail(sequence, now, error)
        for sequence in self._admission_control.deadlines.unannounced(now):
            self._announce(sequence)

    def check_integrity(self) -> None:
        """Raise IntegrityError if a block, a slot or a sequence is lost or has two owners."""
        self._placement.check_integrity(self._running)
        self.open_requests.check_integrity(len(self._running))

    def _schedule_running(self) -> None:
        """One token for every sequence whose known tokens are computed, then chunks for the others.

        A strict policy does so for each priority in turn, otherwise all are alike.
        """
        prefilling: list[Sequence] = []
        level: int | None = None
        for sequence in self._running:  # NOTE: preemption shortens this list from its end while it is walked
            if self._step.is_strict and sequence.priority != level:
                level = sequence.priority
                self._schedule_chunks(prefilling)
                prefilling = []
            if sequence.num_computed_tokens < sequence.num_prefill_tokens:
                prefilling.append(sequence)
            elif sequence.is_late:
                self._step.add_late(sequence)
            elif not sequence.can_decode:
                continue
            elif self._step.is_full or not self._schedule_decode(sequence):
                break
        self._schedule_chunks(prefilling)

    def _schedule_decode(self, sequence: Sequence) -> bool:
        """The next token of a sequence; False when it had to give up its place for lack of blocks."""
        new_blocks: tuple[BlockId, ...] = ()
        if self._placement.needs_block(sequence):
            while not self._cache.can_allocate(1):
                if self._preempt_last() is sequence:
                    return False
            new_blocks = self._placement.grow(sequence)
            self._waiting.fair_share.charge(sequence.client_id, self._cache.block_size)
        self._step.add_decode(sequence, new_blocks)
        return True

    def _preempt_last(self) -> Sequence:
        victim = self._running.pop()
        self._placement.preempt(victim)
        self.open_requests.move(victim, SequenceStatus.WAITING)
        victim.num_preemptions += 1
        self._waiting.push(victim)
        self._step.output.num_preempted += 1
        return victim

    def _schedule_chunks(self, prefilling: list[Sequence]) -> None:
        """The next tokens of each prompt, as many as the policy leaves; maybe none."""
        is_alone = len(prefilling) == 1 and not self.num_waiting
        are_all = not (self.num_waiting and self._may_start)
        for number, sequence in enumerate(prefilling, 1):
            most = self._step.chunk_tokens(is_alone, is_last=are_all and number == len(prefilling))
            if most <= 0:
                return
            self._step.add_chunk(sequence, self._cache.start_chunk(sequence, most))

    def _admit(self) -> None:
        """Start waiting sequences, best first, while the step has room for their tokens."""
        self._has_room = True
        while self.num_waiting:
            most = self._step.chunk_tokens(self.num_waiting == 1 and not self._step.has_prompts, self.num_waiting == 1)
            if most <= 0:
                return
            sequence = self._place_head()
            if sequence is None:
                self._has_room = self._may_start = False
                return
            self._step.add_chunk(sequence, self._cache.start_chunk(sequence, most))

    def _admit_urgent(self) -> None:
        """Start waiting sequences of better priority than running ones, in their place where blocks or slots lack."""
        while self._running:
            head = self._waiting.head()
            if head is None or head.priority >= self._running[-1].priority:
                return
            if self._place_head() is None:
                if head.has_tokens_in_flight or self._placement.is_reserving:
                    return
                self._preempt_last()

    def _place_head(self) -> Sequence | None:
        """Make the best waiting sequence a running one; None when that cannot be now."""
        sequence = self._waiting.head()
        if sequence is None or sequence.has_tokens_in_flight or not self._placement.try_place(sequence):
            return None
        self._waiting.remove(sequence)
        self.open_requests.move(sequence, SequenceStatus.RUNNING)
        insort(self._running, sequence, key=_ORDER)
        if not sequence.num_preemptions:
            num_tokens = len(sequence.block_table) * self._cache.block_size - sequence.num_computed_tokens
            self._waiting.fair_share.charge(sequence.client_id, num_tokens)
        if not sequence.is_started:
            self._start(sequence)
        return sequence

    def _start(self, sequence: Sequence) -> None:
        """The first choice of a request has its slot."""
        self.num_admission_waits += sequence.arrival_number < self._num_tried
        for choice in self.open_requests.choices(sequence.request_id):
            choice.is_started = True
        if not sequence.is_announced:
            self._announce(sequence)

    def _announce(self, sequence: Sequence) -> None:
        for choice in self.open_requests.choices(sequence.request_id):
            choice.is_announced = True
        self._events.queued.append(sequence)

    def _fail(self, sequence: Sequence, now: float, error: RequestError) -> None:
        if sequence.status != SequenceStatus.FINISHED:
            sequence.status_code, sequence.code, sequence.message = error.status, error.code, error.message
            self._finish(sequence, FinishReason.ERROR, now)

    def _finish(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        self._may_start = True
        if sequence.status == SequenceStatus.RUNNING:
            self._running.remove(sequence)
            self._placement.release(sequence, is_sound=is_sound(sequence))
        else:
            self._placement.forget(sequence)
            if sequence.arrival_number >= 0:
                self._waiting.remove(sequence)
        self._admission_control.deadlines.discard(sequence)
        self.open_requests.move(sequence, SequenceStatus.FINISHED)
        sequence.finish_reason = reason
        sequence.finished_at = now
        self._events.finished.append(sequence)
        if sequence.arrival_number >= 0:
            self._waiting.fair_share.leave(sequence.client_id)

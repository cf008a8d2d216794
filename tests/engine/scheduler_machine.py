"""A state machine over the Scheduler and a paged memory of token ids, for those who say which cache there is."""

from __future__ import annotations

from collections import deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.mask_source import NO_MASK_ROW
from sparkinfer.engine.scheduler_output import SchedulerOutput, StepResult
from sparkinfer.engine.sequence import Sequence
from sparkinfer.engine.swap_space import SwapSpace
from sparkinfer.request import FinishReason, RequestId
from tests.engine.scheduling import make_sequence, next_token, solo_output

MAX_MODEL_LEN = 30
LIMITS = {
    "max_num_seqs": st.integers(1, 5),
    "max_num_batched_tokens": st.integers(1, 12),
    "prefill_chunk_tokens": st.integers(1, 6),
    "policy": st.sampled_from(["continuous", "chunked", "priority"]),
    "admission": st.sampled_from(["on_demand", "reserve"]),
}
VOCAB_SIZES = st.sampled_from([4, 40, 400])
LATENESS = st.lists(st.booleans(), max_size=6).map(lambda found: [*found, False])  # of masks; it always ends


class SoloTokens:
    """What grammars force: the tokens that the model would say, some at a time."""

    def __init__(self, machine: SchedulerMachine) -> None:
        self._machine = machine

    def forced(self, mask_row: int, position: int) -> list[int]:
        sequence = self._machine.sequences[mask_row]
        assert position == sequence.num_tokens
        tokens = sequence.token_ids(0, position)
        for _ in range((7 * mask_row + position) % 5):
            tokens.append(next_token(tokens, self._machine.vocab_size))
        return tokens[position:]


def machine_settings(max_examples: int, steps: int) -> settings:
    return settings(
        max_examples=max_examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
    )


class SchedulerMachine(RuleBasedStateMachine):
    """Random requests, aborts and step depths over a small pool: everybody gets their solo output, exactly once."""

    def begin(self, scheduler, device, config: SchedulerConfig, swap_space: SwapSpace) -> None:
        """Whoever inherits does this first; prompts and their outputs are at most MAX_MODEL_LEN tokens."""
        self.scheduler, self.device, self.config, self.swap_space = scheduler, device, config, swap_space
        self.vocab_size = device.vocab_size
        self.capacity = len(device.pool)
        self.now = 0.0
        self.in_flight: deque[tuple[SchedulerOutput, StepResult | None]] = deque()  # None: it left garbage
        self.sequences: list[Sequence] = []
        self.emitted: dict[Sequence, list[int]] = {}
        self.scored: dict[Sequence, list[tuple[int, float]]] = {}
        self.ended: dict[Sequence, int] = {}
        self.aborted: set[int] = set()
        self.failed: set[int] = set()
        self.poisoned: set[int] = set()      # met NaN, or may have
        self.announced: set[int] = set()
        self.num_requests = 0
        scheduler.output_tokens.forced = SoloTokens(self)

    def request(self, prompt: list[int], max_tokens: int, n: int, priority: int, is_held: bool, **more) -> None:
        """is_held: masks constrain it. more: attributes of the sequences."""
        choices = [make_sequence(self.num_requests, prompt, max_tokens, priority, choice) for choice in range(n)]
        for mask_row, sequence in enumerate(choices, len(self.sequences)):
            sequence.arrived_at = self.now
            sequence.mask_row = mask_row if is_held else NO_MASK_ROW
            for name, value in more.items():
                setattr(sequence, name, value)
        self.num_requests += 1
        self.sequences += choices
        self.scheduler.add(choices, self.now)
        self.hear()

    @rule(seconds=st.integers(1, 4))
    def pass_time(self, seconds):
        self.now += seconds
        self.scheduler.expire(self.now)
        self.hear()

    @rule()
    def schedule(self):
        if len(self.in_flight) < 3:
            self.launch()

    @rule(num_steps=st.integers(2, 9), depth=st.integers(0, 2))
    def run_on(self, num_steps, depth):
        """Steps without news, so that blocks run out."""
        for _ in range(num_steps):
            if len(self.in_flight) < 3:
                self.launch()
            while len(self.in_flight) > depth:
                self.update()

    @rule()
    def schedule_undone(self):
        """A step that finds no memory for its copies; steps behind it run on, over what it should have left."""
        if len(self.in_flight) < 3:
            self.launch(is_undone=True)

    @precondition(lambda self: self.in_flight)
    @rule()
    def update(self):
        output, result = self.in_flight.popleft()
        if result is None:
            self.fail_step(output)
        else:
            self.scheduler.update(output, result, 1.0)
            self.hear()

    @precondition(lambda self: self.in_flight)
    @rule()
    def fail(self):
        """A step that did its work after all may fail as well: its results nobody may use."""
        output, _ = self.in_flight.popleft()
        self.fail_step(output)

    def fail_step(self, output: SchedulerOutput) -> None:
        victims = [
            *(row.sequence for row in output.rows),
            *self.scheduler._cache.victims_of(output),
            *self.swap_space.victims_of(output),
        ]
        self.failed.update(id(sequence) for sequence in victims if sequence not in self.ended)
        self.scheduler.fail(output, 1.0, 503, "out_of_memory", "No room.")
        self.hear()

    @precondition(lambda self: self.num_requests)
    @rule(data=st.data())
    def abort(self, data):
        request_id = data.draw(st.integers(0, self.num_requests - 1))
        open_before = [s for s in self.sequences if s.request_id == request_id and s not in self.ended]
        self.aborted.update(map(id, open_before))
        self.scheduler.abort(RequestId(request_id), 1.0)
        self.hear()

    def launch(self, is_undone: bool = False) -> bool:
        output = self.scheduler.schedule()
        assert sum(row.num_tokens for row in output.scheduled) == output.num_tokens
        assert output.num_tokens <= self.config.max_num_batched_tokens
        assert not (output.num_preempted and self.config.admission == "reserve")
        self.check_prompt_tokens(output)
        if not output.rows:
            return False
        self.in_flight.append((output, self.device.leave_undone(output) if is_undone else self.device.run(output)))
        return True

    def check_prompt_tokens(self, output: SchedulerOutput) -> None:
        """No prompt gets more than a chunk beside decodes or other prompts."""
        chunks = [row.num_tokens for row in output.scheduled if row.token_ids is not None]
        assert output.num_decode_tokens == output.num_tokens - sum(chunks)
        limit = self.config.prefill_chunk_tokens
        if self.config.policy == "chunked":
            assert sum(chunks) <= limit
        elif self.config.policy == "continuous" and len(output.scheduled) > 1:
            assert max(chunks, default=0) <= limit

    def hear(self) -> None:
        """Accepted once, before the first token; nothing after the end."""
        events = self.scheduler.take_events()
        for sequence in events.queued:
            assert sequence.request_id not in self.announced
            self.announced.add(sequence.request_id)
        for sequence, token_ids, scores in events.scores:
            assert sequence not in self.ended
            assert sequence not in self.emitted
            positions = [score.logprob for score in scores]
            self.scored.setdefault(sequence, []).extend(zip(token_ids, positions, strict=True))
        for sequence, token_id in zip(events.sequences, events.token_ids, strict=True):
            assert sequence not in self.ended
            assert sequence.request_id in self.announced
            self.emitted.setdefault(sequence, []).append(token_id)
        for sequence in events.finished:
            assert sequence not in self.ended
            self.ended[sequence] = sequence.finish_reason
            self.check_end(sequence)

    def check_end(self, sequence: Sequence) -> None:
        emitted = self.emitted.get(sequence, [])
        assert emitted == sequence.output_token_ids
        limit = min(MAX_MODEL_LEN, self.capacity) - sequence.num_prompt_tokens
        if sequence.num_prompt_tokens == 0 or limit < min(1, sequence.sampling.max_tokens):
            assert sequence.finish_reason == FinishReason.ERROR
            return
        solo = solo_output(sequence.prompt_token_ids, min(sequence.sampling.max_tokens, limit), self.vocab_size)
        if sequence.code == "nan_logits":
            assert id(sequence) in self.poisoned
            return
        self.check_scores(sequence)
        if sequence.code == "no_capacity":
            assert not emitted
            assert sequence.status_code == 429
            assert self.now - sequence.arrived_at >= self.config.admission_wait_s
        elif id(sequence) in self.aborted | self.failed:
            assert sequence.finish_reason == (
                FinishReason.ABORT if id(sequence) in self.aborted else FinishReason.ERROR
            )
            assert emitted == solo[: len(emitted)]
        else:
            assert emitted == solo
            full = len(solo) == min(sequence.sampling.max_tokens, limit)
            assert sequence.finish_reason == (FinishReason.LENGTH if full else FinishReason.STOP)

    def check_scores(self, sequence: Sequence) -> None:
        """Each token of the prompt once, in order; all of them by the first token of the output, and by the end."""
        scored = self.scored.get(sequence, [])
        first = sequence.sampling.prompt_logprobs_from
        wanted = [(t, float(i)) for i, t in enumerate(sequence.prompt_token_ids) if i >= first]
        if sequence.sampling.prompt_logprobs is None:
            wanted = []
        is_whole = sequence in self.emitted or sequence.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
        assert scored == (wanted if is_whole else wanted[: len(scored)])

    @invariant()
    def nothing_is_lost(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            assert self.scheduler.num_running <= self.config.max_num_seqs
            assert len(self.ended) + self.scheduler.num_running + self.scheduler.num_waiting == len(self.sequences)

    def teardown(self):
        """Everything comes to an end in a bounded number of steps, one in flight at a time or two."""
        if not hasattr(self, "scheduler"):
            return
        work = sum(s.num_prompt_tokens + s.sampling.max_tokens for s in self.sequences if s not in self.ended)
        for _ in range(20 + 20 * work):
            launched = self.launch()
            if self.in_flight and (len(self.in_flight) > self.num_requests % 2 or not launched):
                self.update()
            if len(self.ended) == len(self.sequences) and not self.in_flight:
                break
        assert len(self.ended) == len(self.sequences)
        assert not self.in_flight
        assert self.scheduler._cache.num_free_blocks == self.scheduler._cache.num_blocks
        assert self.swap_space.num_free_bytes == self.swap_space._num_bytes
        assert set(self.device.swapped) <= set(self.swap_space._drops)
        self.nothing_is_lost()

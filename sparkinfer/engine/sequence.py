"""One choice of one request while the engine works on it. Knows token ids; never text, devices or other sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NewType

from sparkinfer.engine.mask_source import NO_MASK_ROW
from sparkinfer.request import CacheReport, FinishReason, RequestId
from sparkinfer.sampling_params import SamplingParams

BlockId = NewType("BlockId", int)  # row of KVCache in units of block_size tokens
SlotId = NewType("SlotId", int)    # row of everything the device keeps per running sequence

NO_SLOT = SlotId(-1)

# Steps on their way that sample tokens of a sequence with masks, when another one is launched: the mask for a token
# takes the token before it, so that more would only wait for each other.
MAX_HELD_AHEAD = 1


class SequenceStatus(IntEnum):
    """Ordered: everything from FINISHED on is over."""

    WAITING = 1   # never ran, or was preempted; owns neither blocks nor a slot
    RUNNING = 2   # owns a slot and blocks
    FINISHED = 3  # owns nothing; finish_reason is set


@dataclass(frozen=True, slots=True)
class PrefixHints:
    """What the prefix cache is told of a request beside its tokens."""

    salt: bytes = b""                    # prefixes are shared only under the same one
    uses_cache: bool = True              # reads and writes it
    turn_starts: tuple[int, ...] = ()    # positions in the prompt where a turn of a conversation begins, ascending
    wants_explanation: bool = False      # of how much was reused


NO_HINTS = PrefixHints()


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable state of one choice; owned by the thread that runs Scheduler, compared by identity.

    The two counters with `scheduled` in their meaning run ahead of the host by the steps in flight:
    num_computed_tokens counts tokens whose KV is present once every launched step has run, and
    num_sampled_tokens counts output tokens sampled by then, of which len(output_token_ids) are known here.
    """

    request_id: RequestId
    choice: int
    reply_to: int
    prompt_token_ids: list[int]          # shared between the choices of a request; never changed
    sampling: SamplingParams             # with this choice's own seed, never None
    stop_token_ids: frozenset[int]       # the model's and the request's
    arrived_at: float                    # monotonic seconds
    priority: int = 0                    # smaller is sooner
    client_id: int = 0                   # whose fair share it is

    hints: PrefixHints = NO_HINTS
    mask_row: int = NO_MASK_ROW          # where a MaskSource has its masks; then it is at most MAX_HELD_AHEAD ahead

    arrival_number: int = -1             # set by Scheduler.add when it waits or runs; breaks ties of priority
    status: SequenceStatus = SequenceStatus.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    max_output_tokens: int = 0           # set by Scheduler.add: max_tokens within the context that can be held
    num_computed_tokens: int = 0
    num_sampled_tokens: int = 0
    num_scored_tokens: int = 0           # prompt tokens before this one are scored, or in a step that does it
    num_prefill_tokens: int = 0          # tokens fed from the host before decode starts; set on admission
    num_cached_tokens: int = 0           # prompt tokens whose KV came from the prefix cache
    cache_report: CacheReport | None = None  # when the client asked for it, of the first admission
    num_preemptions: int = 0
    num_swapped_tokens: int = 0          # tokens whose KV and state wait in host memory
    num_promised_blocks: int = 0         # that it can still need and nobody else gets; admission = "reserve"
    is_announced: bool = False           # its client was told that the request is accepted
    is_started: bool = False             # a choice of its request has had a slot
    is_new_in_slot: bool = False         # the device has not heard of it since it got its slot
    num_blocks_awaited: int = 0          # it cannot run while fewer are available
    is_late: bool = False                # its next token is computed but not sampled: the mask was not there
    waits_for: tuple[Sequence, int] | None = None  # who computes what it begins with, and up to which position
    block_table: list[BlockId] = field(default_factory=list)
    slot: SlotId = NO_SLOT

    finish_reason: FinishReason | None = None
    started_at: float | None = None      # its first step was launched
    first_token_at: float | None = None
    finished_at: float | None = None
    status_code: int = 0                 # HTTP status when finish_reason is ERROR, else 0
    code: str | None = None
    message: str | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known to the host."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def has_tokens_in_flight(self) -> bool:
        """Whether a launched step samples a token that the host has not seen."""
        return self.num_sampled_tokens > len(self.output_token_ids)

    @property
    def can_decode(self) -> bool:
        """Whether another token may be scheduled."""
        num_in_flight = self.num_sampled_tokens - len(self.output_token_ids)
        if self.mask_row != NO_MASK_ROW and num_in_flight > MAX_HELD_AHEAD:
            return False
        return self.num_sampled_tokens < self.max_output_tokens

    @property
    def num_known_tokens(self) -> int:
        """Tokens to be computed before decode starts: all, but not the last one when nothing is to follow it."""
        return self.num_tokens if self.max_output_tokens else max(1, self.num_tokens - 1)

    @property
    def order(self) -> tuple[int, int]:
        """Sort key of both queues: who is served first, and preempted last."""
        return (self.priority, self.arrival_number)

    @property
    def queue_ms(self) -> float:
        """Arrival to first step; to the end when there was none."""
        started_at = self.finished_at if self.started_at is None else self.started_at
        return 0.0 if started_at is None else (started_at - self.arrived_at) * 1e3

    @property
    def ttft_ms(self) -> float:
        """Arrival to first token, 0 when there was none."""
        return 0.0 if self.first_token_at is None else (self.first_token_at - self.arrived_at) * 1e3

    @property
    def generation_ms(self) -> float:
        """Arrival to end, 0 before it."""
        return 0.0 if self.finished_at is None else (self.finished_at - self.arrived_at) * 1e3

    def token_ids(self, start: int, end: int) -> list[int]:
        """Tokens [start, end) of prompt and output, all of them known to the host.

        >>> from sparkinfer.request import RequestId
        >>> s = Sequence(RequestId(1), 0, 0, [5, 6, 7], SamplingParams(max_tokens=4), frozenset(), 0.0)
        >>> s.output_token_ids.append(8)
        >>> s.token_ids(2, 4)
        [7, 8]
        """
        num_prompt_tokens = len(self.prompt_token_ids)
        if end <= num_prompt_tokens:
            return self.prompt_token_ids[start:end]
        from_prompt = self.prompt_token_ids[start:]
        return from_prompt + self.output_token_ids[max(0, start - num_prompt_tokens) : end - num_prompt_tokens]

"""A ModelRunner without a model: tokens from a script, time from a formula. Imports no torch.

The whole service runs on it in tests and in benchmarks of everything but the forward.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sparkinfer.engine.mask_source import NO_MASK_ROW, MaskSource, allows, lowest_allowed
from sparkinfer.engine.scheduler_output import Logprobs, ScheduledSequence, SchedulerOutput, StepResult
from sparkinfer.engine.sequence import SlotId

Script = Callable[[list[int]], list[int]]
"""prompt_token_ids -> output tokens, the stop token included; the last one is repeated for ever."""


def cycle_script(token_ids: list[int], num_tokens: int, stop_token_id: int) -> Script:
    """`token_ids` over and over, `num_tokens` tokens in all, then the stop token; the same for every prompt.

    >>> cycle_script([7, 8], 3, 0)([1, 2])
    [7, 8, 7, 0]
    """
    tokens = [token_ids[i % len(token_ids)] for i in range(num_tokens)] + [stop_token_id]
    return lambda prompt_token_ids: tokens


def echo_script(num_tokens: int, stop_token_id: int) -> Script:
    """The last `num_tokens` tokens of the prompt (all, if it has fewer), then the stop token.

    >>> echo_script(2, 0)([4, 5, 6])
    [5, 6, 0]
    """
    return lambda prompt_token_ids: [*prompt_token_ids[-num_tokens:], stop_token_id]


_SAID = re.compile(r"<<say>>(.*?)<</say>>\s*", re.DOTALL)
_RESULT = "<tool_response>"
_LOOK_BACK_TOKENS = 8192


def said_script(
    decode: Callable[[list[int]], str], encode: Callable[[str], list[int]], stop_token_id: int, otherwise: Script
) -> Script:
    """What a prompt tells it to say: the text in the last <<say>>...<</say>>, then the stop token.

    Of several right behind each other the first is the answer, the second the one after a first tool result, and so
    on, so that a client's whole loop can be written into one message. A prompt that tells nothing: as `otherwise`.
    """

    def script(prompt_token_ids: list[int]) -> list[int]:
        prompt = decode(prompt_token_ids[-_LOOK_BACK_TOKENS:])
        group: list[str] = []
        end = 0
        for match in _SAID.finditer(prompt):
            group = [*group, match[1]] if match.start() == end else [match[1]]
            end = match.end()
        if not group:
            return otherwise(prompt_token_ids)
        number = prompt.count(_RESULT, end)
        return [*encode(group[min(number, len(group) - 1)]), stop_token_id]

    return script


@dataclass(frozen=True, slots=True)
class StepCost:
    """How long a step takes: base_us + per_token_us * tokens of the step."""

    base_us: float = 0.0
    per_token_us: float = 0.0
    busy: bool = False                   # spin instead of sleeping: exact, but it holds the CPU


class _MaskedRow(NamedTuple):
    number: int                          # in StepResult.token_ids
    row: ScheduledSequence
    script: _PromptScript


@dataclass(slots=True)
class _ScriptedHandle:
    result: StepResult
    masked: list[_MaskedRow]
    gate: _ScriptedGate
    ends_at: float                       # monotonic seconds
    busy: bool

    def is_done(self, timeout_s: float) -> bool:
        self._pass_until(min(self.ends_at, time.monotonic() + timeout_s))
        return self.ends_at <= time.monotonic()

    def wait(self) -> StepResult:
        self._pass_until(self.ends_at)
        for row in self.masked:
            self.gate.obey(row, self.result)
        return self.result

    def _pass_until(self, at: float) -> None:
        while (left_s := at - time.monotonic()) > 0:
            if not self.busy:
                time.sleep(left_s)  # what a device would take


class _PromptScript(NamedTuple):
    token_ids: list[int]
    num_prompt_tokens: int
    num_logprobs: int | None

    def token_at(self, position: int) -> int:
        return self.token_ids[min(position - self.num_prompt_tokens, len(self.token_ids) - 1)]


class _ScriptedGate:
    """What MaskGate is to logits; asked in the order of the steps."""

    def __init__(self) -> None:
        self.masks: tuple[MaskSource, int] | None = None  # and the vocabulary's size
        self._late: set[SlotId] = set()

    def obey(self, masked: _MaskedRow, result: StepResult) -> None:
        """Where the mask forbids the script's token, take the lowest one that it allows."""
        assert self.masks is not None, "a constrained sequence, and nobody to ask for its masks"
        source, vocab_size = self.masks
        number, row, script = masked
        is_late = row.slot in self._late and row.token_ids is None
        position = row.start if is_late else row.position
        mask = source.ready(row.mask_row, position)
        self._late.discard(row.slot)
        if mask is None:
            self._late.add(row.slot)
            result.late_rows.append(number)
            return
        lowest = lowest_allowed(mask, vocab_size)
        if lowest is None:
            result.empty_mask_rows.append(number)
            return
        token_id = script.token_at(position)
        result.token_ids[number] = token_id if allows(mask, token_id) else lowest
        if result.logprobs is not None and script.num_logprobs is not None:
            result.logprobs[number] = _scripted_logprobs(result.token_ids[number], script.num_logprobs)


class ScriptedModelRunner:
    """Follows `script` for every sequence; a step starts when the one before it has ended.

    Asked for logprobs, it claims probability 1/2 for the chosen token and a quarter, an eighth, ... for the ids after.
    """

    def __init__(self, script: Script, num_blocks: int, block_size: int, cost: StepCost | None = None) -> None:
        self.prompt_grid = self.bytes_per_slot = 0
        self.chunk_ms: dict[int, float] = {}
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._script = script
        self._cost = cost or StepCost()
        self._ends_at = 0.0
        self._slots: dict[SlotId, _PromptScript] = {}
        self._gate = _ScriptedGate()

    def set_mask_source(self, source: MaskSource, vocab_size: int) -> None:
        """Where a mask is, the script's token gives way to the lowest one that is allowed."""
        self._gate.masks = (source, vocab_size)

    def launch(self, output: SchedulerOutput) -> _ScriptedHandle:
        """Choose the step's tokens by the scripts now; `wait` takes the step's time, and reads the masks."""
        for row in output.scheduled:
            if row.admitted is not None:
                prompt, num_logprobs = row.admitted.prompt_token_ids, row.admitted.sampling.logprobs
                self._slots[row.slot] = _PromptScript(self._script(prompt), len(prompt), num_logprobs)
        result, masked = StepResult([]), []
        logprobs: list[Logprobs | None] = []
        for number, row in enumerate(output.sampling_rows):
            script = self._slots[row.slot]
            token_id = script.token_at(row.position)
            result.token_ids.append(token_id)
            asked = script.num_logprobs
            logprobs.append(None if asked is None else _scripted_logprobs(token_id, asked))
            if row.mask_row != NO_MASK_ROW:
                masked.append(_MaskedRow(number, row, script))
        if any(entry is not None for entry in logprobs):
            result.logprobs = logprobs
        for chunk in output.scored:
            result.scores.append([_scripted_logprobs(token_id, chunk.num_top) for token_id in chunk.token_ids])
        cost_s = (self._cost.base_us + self._cost.per_token_us * output.num_tokens) * 1e-6
        self._ends_at = max(self._ends_at, time.monotonic()) + cost_s
        return _ScriptedHandle(result, masked, self._gate, self._ends_at, self._cost.busy)

    def copy(self, output: SchedulerOutput) -> None:
        pass

    def close(self) -> None:
        self._slots.clear()


_LN_2 = 0.6931471805599453


def _scripted_logprobs(token_id: int, num_logprobs: int) -> Logprobs:
    top_token_ids = [token_id + i for i in range(num_logprobs)]
    return Logprobs(-_LN_2, top_token_ids, [-_LN_2 * (i + 1) for i in range(num_logprobs)])

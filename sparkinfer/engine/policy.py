"""How one step's tokens are shared between decodes and prompts. Knows counts; never sequences, blocks or queues."""

from __future__ import annotations

from dataclasses import dataclass

from sparkinfer.config import SchedulerConfig

LEAST_SHARE = 32  # tokens that are not divided any more


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """The limits of a step, in tokens. What it says of "decodes" holds for those that go before the prompt in question.

    max_step_tokens:    everything together
    max_chunk_tokens:   one prompt, in a step that others share
    max_mixed_tokens:   all prompts, in a step in which sequences decode
    max_prompt_tokens:  all prompts, in a step in which none does
    is_strict:          a better priority comes before a worse one with its prompts too, not only with its decodes
    """

    max_step_tokens: int
    max_chunk_tokens: int
    max_mixed_tokens: int
    max_prompt_tokens: int
    is_strict: bool = False

    def chunk_tokens(
        self, num_decode_tokens: int, num_prompt_tokens: int, is_alone: bool, is_last: bool = True
    ) -> int:
        """Most tokens that the next prompt of a step may get; zero or less: none.

        num_decode_tokens, num_prompt_tokens:  what the step has already
        is_alone:                              no other prompt wants a part of it
        is_last:                               no other prompt wants what this one leaves

        A prompt takes a whole step only where that delays nobody: alone, or before everything of worse priority. Where
        others wait, it leaves them half of the room, so that a short one need not wait for the end of a long one.
        """
        most = self.max_mixed_tokens if num_decode_tokens else self.max_prompt_tokens
        room = min(most, self.max_step_tokens - num_decode_tokens) - num_prompt_tokens
        if not num_decode_tokens and (is_alone or self.is_strict):
            return room
        if not is_last and not self.is_strict:
            room = max(room // 2, min(room, LEAST_SHARE))
        return min(room, self.max_chunk_tokens)


def make_policy(config: SchedulerConfig) -> StepPolicy:
    """The policy that [scheduler] names.

    continuous  decodes first; prompts share the rest, a chunk each; a lone prompt takes the whole step if none decodes
    chunked     decodes first; all prompts together get one chunk, in every step, so that all steps are short
    priority    as continuous within one priority; a better one takes what it can use before any worse one
    """
    most = config.max_num_batched_tokens
    chunk = config.prefill_chunk_tokens or most
    mixed = config.prefill_mix_max_tokens or most
    if config.policy == "chunked":
        return StepPolicy(most, chunk, min(chunk, mixed), chunk)
    return StepPolicy(most, chunk, mixed, most, is_strict=config.policy == "priority")

"""How one request wants its tokens chosen. Plain values: validated by the API layer, read by the Sampler."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling controls of one request; crosses process borders as msgpack.

    Penalties act on generated tokens (repetition_penalty on prompt and generated tokens). `logprobs` is the number
    of alternatives per token (0-20), None for no logprobs at all. `seed` None means that the text worker draws one.
    With max_tokens 0 nothing is generated: the prompt is scored, or computed for nothing.
    """

    max_tokens: int
    temperature: float = 1.0          # 0: greedy
    top_k: int = 0                    # 0: off
    top_p: float = 1.0                # 1: off
    min_p: float = 0.0                # 0: off
    presence_penalty: float = 0.0     # -2..2
    frequency_penalty: float = 0.0    # -2..2
    repetition_penalty: float = 1.0   # > 0; 1: off
    logit_bias: dict[int, float] = {}  # token id -> added to the logit
    seed: int | None = None           # choice i of n uses seed + i
    stop_token_ids: tuple[int, ...] = ()  # the text worker adds the model's own; what stops is no part of the output
    ignore_eos: bool = False          # the text worker does not
    logprobs: int | None = None
    prompt_logprobs: int | None = None  # alternatives per token of the prompt; None: the prompt is not scored
    prompt_logprobs_from: int = 1     # position of the first one that is scored; nothing predicts the one at 0

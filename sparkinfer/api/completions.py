"""POST /v1/completions: body to one Request per prompt.

Knows neither the answer's shape (completions_reply.py) nor any process.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sparkinfer.api.generation import Generation, NewRequestId, read_stream
from sparkinfer.api.models import MAX_TOP_LOGPROBS, ModelInfo
from sparkinfer.api.response_format import read_output_format
from sparkinfer.api.sampling import read_choices, read_priority, read_sampling, read_stop, read_token_ids
from sparkinfer.api.schema import Object, as_list, fail, read_bool, read_int, read_str, type_name
from sparkinfer.api.unsupported import refuse_tools, refuse_unsupported
from sparkinfer.errors import context_length_error
from sparkinfer.request import Prompt, Request, TextPrompt, TokenPrompt
from sparkinfer.sampling_params import SamplingParams

MAX_PROMPTS = 256  # in one request
MAX_TOTAL_CHOICES = 512  # prompts * n


def parse_completion(body: Object, info: ModelInfo, new_request_id: NewRequestId) -> Generation:
    """The generation that `body` asks for; RequestError(400) names the field that is wrong."""
    echo = read_bool(body, "echo", False)
    num_logprobs = read_int(body, "logprobs", 0, MAX_TOP_LOGPROBS)
    sampling = _read_sampling(body, info, num_logprobs, echo)
    prompts = parse_prompts(body.get("prompt"), info, min(sampling.max_tokens, 1))
    if body.get("suffix") is not None:
        fail("suffix", "is not supported")
    read_int(body, "best_of", 1, 1)
    n = read_choices(body)
    if len(prompts) * n > MAX_TOTAL_CHOICES:
        fail("prompt", f"prompts times n must be at most {MAX_TOTAL_CHOICES}, got {len(prompts) * n}")
    for key in ("user", "model"):
        read_str(body, key)
    refuse_unsupported(body)
    refuse_tools(body)
    stream, include_usage = read_stream(body)
    stop = read_stop(body)
    priority = read_priority(body)
    output_format = read_output_format(body)
    requests = tuple(
        Request(
            request_id=new_request_id(),
            prompt=prompt,
            sampling=sampling,
            n=n,
            stop=stop,
            echo=echo,
            priority=priority,
            uses_cache=sampling.prompt_logprobs is None and sampling.max_tokens > 0,
            output_format=output_format,
        )
        for prompt in prompts
    )
    return Generation(requests, stream, include_usage)


def _read_sampling(body: Object, info: ModelInfo, num_logprobs: int | None, echo: bool) -> SamplingParams:
    """As everywhere; with echo max_tokens may be 0, and logprobs are those of the prompt too."""
    if not echo:
        return read_sampling(body, info, num_logprobs)
    wants_nothing = type(body.get("max_tokens")) is int and body["max_tokens"] == 0
    sampling = read_sampling({**body, "max_tokens": None} if wants_nothing else body, info, num_logprobs)
    return msgspec.structs.replace(
        sampling, max_tokens=0 if wants_nothing else sampling.max_tokens, prompt_logprobs=num_logprobs
    )


def parse_prompts(value: Any, info: ModelInfo, min_output_tokens: int = 1) -> tuple[Prompt, ...]:
    """A string, token ids, or a list of either; never empty, never mixed.

    min_output_tokens: for which the context must have room
    """
    if isinstance(value, str):
        return (_text_prompt(value, "prompt"),)
    if not isinstance(value, list):
        fail("prompt", f"must be a string, token ids, or an array of either, not {type_name(value)}")
    if not value:
        fail("prompt", "must not be empty")
    if isinstance(value[0], int):
        return (_token_prompt(value, "prompt", info, min_output_tokens),)
    if len(value) > MAX_PROMPTS:
        fail("prompt", f"must have at most {MAX_PROMPTS} prompts, got {len(value)}")
    if isinstance(value[0], str):
        return tuple(_text_prompt(item, f"prompt[{i}]") for i, item in enumerate(value))
    return tuple(_token_prompt(item, f"prompt[{i}]", info, min_output_tokens) for i, item in enumerate(value))


def _text_prompt(value: Any, path: str) -> TextPrompt:
    if not isinstance(value, str):
        fail(path, f"must be a string like the first prompt, not {type_name(value)}")
    if not value:
        fail(path, "must not be empty")
    return TextPrompt(text=value)


def _token_prompt(value: Any, path: str, info: ModelInfo, min_output_tokens: int) -> TokenPrompt:
    token_ids = as_list(value, path)
    if not token_ids:
        fail(path, "must not be empty")
    if len(token_ids) + min_output_tokens > info.max_model_len:
        raise context_length_error(info.max_model_len, len(token_ids), path)
    return TokenPrompt(token_ids=read_token_ids(token_ids, info.vocab_size, path))

"""The sampling controls that every surface shares: names, ranges, defaults.

Knows no prompt; the surfaces decide how logprobs are spelled.
"""

from __future__ import annotations

from typing import Any

from sparkinfer.api.models import MAX_CHOICES, MAX_STOPS, ModelInfo
from sparkinfer.api.schema import (
    Object,
    as_float,
    as_int,
    as_list,
    as_str,
    fail,
    read_bool,
    read_float,
    read_int,
    read_object,
)
from sparkinfer.sampling_params import SamplingParams

INT32_MAX = 2**31 - 1
SEED_MAX = 2**63 - 1
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_STOP_CHARACTERS = 1024

# Field -> lowest and highest value. The OpenAPI document is made of these tables too.
FLOAT_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (1e-3, 2),  # the logit is divided by it: zero would make it infinite
}
INT_RANGES: dict[str, tuple[int, int]] = {
    "max_tokens": (1, INT32_MAX),
    "max_completion_tokens": (1, INT32_MAX),
    "top_k": (0, INT32_MAX),
    "seed": (0, SEED_MAX),
    "n": (1, MAX_CHOICES),
    "priority": (-100, 100),
}
BIAS_RANGE = (-100, 100)


def read_sampling(body: Object, info: ModelInfo, logprobs: int | None) -> SamplingParams:
    """All sampling controls of `body`; `logprobs` as the surface understood it.

    top_p 0 and 1 both switch the filter off; max_tokens is clamped to the model's output cap, and defaults to it.
    """
    defaults = info.sampling_defaults
    return SamplingParams(
        max_tokens=_read_max_tokens(body, info),
        temperature=_float(body, "temperature", defaults.temperature),
        top_k=_int(body, "top_k", defaults.top_k),
        top_p=_float(body, "top_p", defaults.top_p) or 1.0,
        min_p=_float(body, "min_p", 0.0),
        presence_penalty=_float(body, "presence_penalty", 0.0),
        frequency_penalty=_float(body, "frequency_penalty", 0.0),
        repetition_penalty=_float(body, "repetition_penalty", 1.0),
        logit_bias=_read_logit_bias(body, info.vocab_size),
        seed=read_int(body, "seed", *INT_RANGES["seed"]),
        stop_token_ids=_read_stop_token_ids(body, info.vocab_size),
        ignore_eos=read_bool(body, "ignore_eos", False),
        logprobs=logprobs,
    )


def read_priority(body: Object) -> int:
    """`priority`: an integer, smaller is sooner."""
    return _int(body, "priority", 0)


def read_choices(body: Object) -> int:
    """`n`."""
    return _int(body, "n", 1)


def read_stop(body: Object, max_stops: int = MAX_STOPS) -> tuple[str, ...]:
    """`stop`: one string or several; empty strings would match everywhere and are refused."""
    value = body.get("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        return (_checked_stop(value, "stop"),)
    return read_stop_list(as_list(value, "stop"), "stop", max_stops)


def read_stop_list(stops: list[Any], path: str, most: int) -> tuple[str, ...]:
    """At most `most` stop strings, none of them empty."""
    if len(stops) > most:
        fail(path, f"must have at most {most} strings, got {len(stops)}")
    return tuple(_checked_stop(as_str(stop, f"{path}[{i}]"), f"{path}[{i}]") for i, stop in enumerate(stops))


def _checked_stop(stop: str, path: str) -> str:
    if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
        fail(path, f"must have 1 to {MAX_STOP_CHARACTERS} characters, got {len(stop)}")
    return stop


def read_token_ids(value: list[Any], vocab_size: int, path: str) -> tuple[int, ...]:
    """Token ids below `vocab_size`; the first bad one is named."""
    if not all(type(token_id) is int and 0 <= token_id < vocab_size for token_id in value):
        for i, token_id in enumerate(value):
            as_int(token_id, f"{path}[{i}]", 0, vocab_size - 1)
    return tuple(value)


def _read_max_tokens(body: Object, info: ModelInfo) -> int:
    legacy = _int(body, "max_tokens", info.max_output_tokens)
    return min(_int(body, "max_completion_tokens", legacy), info.max_output_tokens)


def _read_logit_bias(body: Object, vocab_size: int) -> dict[int, float]:
    entries = read_object(body, "logit_bias")
    if not entries:
        return {}
    if len(entries) > MAX_LOGIT_BIAS:
        fail("logit_bias", f"must have at most {MAX_LOGIT_BIAS} entries, got {len(entries)}")
    biases = {}
    for key, value in entries.items():
        path = f"logit_bias[{key[:32]!r}]"
        if not (key.isascii() and key.isdecimal() and len(key) <= 10 and int(key) < vocab_size):
            fail(path, f"keys must be token ids from 0 to {vocab_size - 1}")
        biases[int(key)] = as_float(value, path, *BIAS_RANGE)
    return biases


def _read_stop_token_ids(body: Object, vocab_size: int) -> tuple[int, ...]:
    value = body.get("stop_token_ids")
    if value is None:
        return ()
    token_ids = as_list(value, "stop_token_ids")
    if len(token_ids) > MAX_STOP_TOKEN_IDS:
        fail("stop_token_ids", f"must have at most {MAX_STOP_TOKEN_IDS} ids, got {len(token_ids)}")
    return read_token_ids(token_ids, vocab_size, "stop_token_ids")


def _int(body: Object, key: str, default: int) -> int:
    value = read_int(body, key, *INT_RANGES[key])
    return default if value is None else value


def _float(body: Object, key: str, default: float) -> float:
    return read_float(body, key, default, *FLOAT_RANGES[key])

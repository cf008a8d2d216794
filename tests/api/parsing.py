"""Shortcuts for tests of the request parsers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from sparkinfer.api.chat import parse_chat
from sparkinfer.api.completions import parse_completion
from sparkinfer.api.generation import Generation
from sparkinfer.api.models import ModelInfo, SamplingDefaults
from sparkinfer.errors import RequestError
from sparkinfer.request import RequestId

INFO = ModelInfo(model="tiny", max_model_len=100, max_output_tokens=64, vocab_size=1000)
TUNED = ModelInfo(
    model="tiny",
    max_model_len=100,
    max_output_tokens=64,
    vocab_size=1000,
    sampling_defaults=SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95),
)
USER = [{"role": "user", "content": "hi"}]


def new_ids() -> Any:
    counter = itertools.count(1)
    return lambda: RequestId(next(counter))


def chat(body: dict[str, Any], info: ModelInfo = INFO) -> Generation:
    return parse_chat({"messages": USER} | body, info, new_ids())


def completion(body: dict[str, Any], info: ModelInfo = INFO) -> Generation:
    return parse_completion({"prompt": "hi"} | body, info, new_ids())


def refused(parse: Any, *arguments: Any) -> RequestError:
    """The 400 that parsing ends with."""
    with pytest.raises(RequestError) as caught:
        parse(*arguments)
    assert caught.value.status == 400
    return caught.value

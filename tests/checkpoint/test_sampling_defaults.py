"""What a file recommends reaches the API only if a request could have asked for it."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sparkinfer.api.models import SamplingDefaults
from sparkinfer.checkpoint.sampling_defaults import sampling_defaults

PATH = Path("model.gguf")


def read(**values: Any) -> dict[str, float]:
    return sampling_defaults({f"general.sampling.{key}": value for key, value in values.items()}, PATH)


def test_good_values_get_our_names(caplog: pytest.LogCaptureFixture) -> None:
    expected = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05}
    assert read(temp=0.6, top_k=20, top_p=0.95, min_p=0.05) == expected
    assert read(temp=1) == {"temperature": 1.0}
    assert read() == {}
    assert not caplog.records


@pytest.mark.parametrize("key", ["temp", "top_k", "top_p", "min_p"])
@pytest.mark.parametrize("value", ["hot", math.nan, math.inf, -3, 2.5e9, [0.5], None])
def test_bad_values_are_left_out_with_a_warning(key: str, value: Any, caplog: pytest.LogCaptureFixture) -> None:
    good = {"top_p": 0.5} if key != "top_p" else {"min_p": 0.5}
    with caplog.at_level(logging.WARNING):
        defaults = read(**{key: value}, **good)
    assert defaults == good
    assert f"model.gguf: metadata key 'general.sampling.{key}' is" in caplog.text
    msgspec.json.decode(msgspec.json.encode(defaults), type=SamplingDefaults)

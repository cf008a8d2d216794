"""Tools and forms of output where no grammar holds the model: what it said wrong is never shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.system.harness import SCRIPTED, Server
from tests.system.test_tools import JSON_PERSON, PARIS, ask, call


@pytest.fixture(scope="module")
def unmasked(embedded_model: Path) -> Iterator[OpenAI]:
    """The same without grammars: whatever the script says comes through to the readers."""
    with (
        Server(embedded_model, *SCRIPTED, "model.max_model_len=4096", "grammar.enabled=false") as running,
        OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=30) as made,
    ):
        yield made


UNUSABLE: list[tuple[dict[str, Any], str, str]] = [
    ({"tool_choice": "required"}, "I will not. " * 20, "invalid_tool_output"),
    ({}, call("get_weather", {"city": "Rome", "days": 77}), "invalid_tool_output"),
    ({}, call("get_weather", {"days": 7}), "invalid_tool_output"),
    ({}, call("delete_all"), "invalid_tool_output"),
    ({}, PARIS[:-20], "invalid_tool_output"),
    ({"tool_choice": "none"}, PARIS, "invalid_tool_output"),
    ({"response_format": JSON_PERSON}, '{"name": "Ann"}', "invalid_json_output"),
    ({"response_format": {"type": "json_object"}}, '{"a": 1e999}', "invalid_json_output"),
]


@pytest.mark.parametrize(("fields", "said", "code"), UNUSABLE)
def test_without_grammars_nothing_wrong_is_shown(
    unmasked: OpenAI, fields: dict[str, Any], said: str, code: str
) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        ask(unmasked, said, **fields)
    assert (caught.value.status_code, caught.value.code) == (502, code)
    shown: list[Any] = []
    with pytest.raises(openai.APIError) as streamed:
        shown.extend(c.choices[0].delta for c in ask(unmasked, said, stream=True, **fields) if c.choices)
    assert streamed.value.code == code
    assert not any(delta.content or delta.tool_calls for delta in shown)


@pytest.mark.parametrize(("name", "value"), [("regex", "[0-9]+"), ("grammar", 'start: "a"')])
def test_without_grammars_forms_that_nothing_else_holds_are_refused(unmasked: OpenAI, name: str, value: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(unmasked, "hi", response_format={"type": name, name: value})
    assert caught.value.param == name


def test_without_grammars_what_is_right_comes_through(unmasked: OpenAI) -> None:
    choice = ask(unmasked, f"Sure. {PARIS}").choices[0]
    assert (choice.message.content, len(choice.message.tool_calls), choice.finish_reason) == ("Sure.", 1, "tool_calls")
    metrics = httpx.get(str(unmasked.base_url).replace("/v1/", "/metrics"), timeout=30).text
    assert 'sparkinfer_requests_by_outcome_total{outcome="invalid_tool_output"}' in metrics

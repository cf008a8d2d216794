from __future__ import annotations

from typing import Any

import pytest

from sparkinfer.sampling_params import SamplingParams
from tests.api.parsing import INFO, TUNED, chat, completion, refused

NUMBERS = {  # field: (allowed, refused)
    "temperature": ([0, 0.7, 1, 2, 2.0], [-0.1, 2.1, "high", True, [1], 10**400]),
    "top_p": ([0.0001, 0.9, 1], [-0.1, 1.1, "x", True]),
    "min_p": ([0, 0.05, 1], [-0.1, 1.01, "x"]),
    "presence_penalty": ([-2, 0, 2], [-2.1, 2.1, "1"]),
    "frequency_penalty": ([-2, 0, 2], [-2.1, 2.1, "1"]),
    "repetition_penalty": ([0.5, 1, 1.3, 2], [0, -1, 2.1, "1"]),
    "top_k": ([0, 40, 1_000_000], [-1, 1.5, "4", True, 2**31]),
    "seed": ([0, 42, 2**53 + 1, 2**63 - 1], [-1, 1.5, "7", 2**63]),
}
ALLOWED = [(field, value) for field, (values, _) in NUMBERS.items() for value in values]
REFUSED = [(field, value) for field, (_, values) in NUMBERS.items() for value in values]


def sampling(body: dict[str, Any]) -> SamplingParams:
    return chat(body).requests[0].sampling


@pytest.mark.parametrize(("field", "value"), ALLOWED)
def test_value_in_range_is_passed_on(field: str, value: float) -> None:
    assert getattr(sampling({field: value}), field) == value
    assert getattr(completion({field: value}).requests[0].sampling, field) == value


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_value_out_of_range_names_the_field(field: str, value: object) -> None:
    assert refused(chat, {field: value}).param == field
    assert refused(completion, {field: value}).param == field


def test_top_p_zero_switches_the_filter_off() -> None:
    assert sampling({"top_p": 0}).top_p == 1.0


def test_defaults_are_the_models_own() -> None:
    tuned = chat({}, TUNED).requests[0].sampling
    assert (tuned.temperature, tuned.top_k, tuned.top_p) == (0.6, 20, 0.95)
    plain = sampling({})
    assert (plain.temperature, plain.top_k, plain.top_p, plain.seed) == (1.0, 0, 1.0, None)


@pytest.mark.parametrize("field", [*NUMBERS, "logit_bias", "stop", "n", "max_tokens", "logprobs", "top_logprobs"])
def test_null_is_absent(field: str) -> None:
    assert chat({field: None}) == chat({})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, 64),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9}, 9),
        ({"max_completion_tokens": 9, "max_tokens": 7}, 9),
        ({"max_tokens": 2**31 - 1}, 64),
        ({"max_tokens": 1}, 1),
    ],
)
def test_max_tokens_is_clamped_to_the_models_cap(body: dict[str, Any], expected: int) -> None:
    assert sampling(body).max_tokens == expected


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "7", 2**31])
def test_max_tokens_out_of_range(field: str, value: object) -> None:
    assert refused(chat, {field: value}).param == field


def test_logit_bias_is_keyed_by_id() -> None:
    assert sampling({"logit_bias": {"0": -100, "999": 2.5}}).logit_bias == {0: -100.0, 999: 2.5}


@pytest.mark.parametrize(
    "bias",
    [
        {"1000": 1},  # the vocabulary has 1000 entries
        {"99999999": -100},
        {"-1": 1},
        {"AI": -100},
        {"1.0": 1},
        {"": 1},
        {"²": 1},
        {"1" * 5000: 1},
        {"5": 100.5},
        {"5": 1e9},
        {"5": "1"},
        {"5": None},
        {str(i): 1 for i in range(1025)},
        [1],
        "x",
    ],
)
def test_logit_bias_out_of_range(bias: object) -> None:
    assert str(refused(chat, {"logit_bias": bias}).param).startswith("logit_bias")


def test_logit_bias_takes_1024_entries() -> None:
    big = type(INFO)(model="m", max_model_len=9, max_output_tokens=9, vocab_size=5000)
    assert len(chat({"logit_bias": {str(i): 1 for i in range(1024)}}, big).requests[0].sampling.logit_bias) == 1024


@pytest.mark.parametrize(
    ("stop", "expected"),
    [("x", ("x",)), (["a", "b\n", "c", "d"], ("a", "b\n", "c", "d")), ([], ()), ("\x00", ("\x00",))],
)
def test_stop(stop: object, expected: tuple[str, ...]) -> None:
    assert chat({"stop": stop}).requests[0].stop == expected


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], ["a"] * 5, 7, [7], {"a": 1}, ["x" * 1025]])
def test_stop_out_of_range(stop: object) -> None:
    assert str(refused(chat, {"stop": stop}).param).startswith("stop")


@pytest.mark.parametrize("n", [1, 8])
def test_n(n: int) -> None:
    assert chat({"n": n}).requests[0].n == n


@pytest.mark.parametrize("n", [0, -1, 9, 1000, 1.5, "3", True])
def test_n_out_of_range(n: object) -> None:
    assert refused(chat, {"n": n}).param == "n"


def test_stop_token_ids_and_ignore_eos() -> None:
    params = sampling({"stop_token_ids": [0, 999], "ignore_eos": True})
    assert (params.stop_token_ids, params.ignore_eos) == ((0, 999), True)


@pytest.mark.parametrize("ids", [[1000], [-1], ["1"], [1.0], [True], list(range(65)), 5])
def test_stop_token_ids_out_of_range(ids: object) -> None:
    assert str(refused(chat, {"stop_token_ids": ids}).param).startswith("stop_token_ids")


@pytest.mark.parametrize("make", [chat, completion])
def test_priority_is_an_integer_within_bounds(make: Any) -> None:
    assert [make(body).requests[0].priority for body in ({}, {"priority": -100}, {"priority": 100})] == [0, -100, 100]
    for bad in (-101, 101, 1.5, "1", True):
        assert refused(make, {"priority": bad}).param == "priority"

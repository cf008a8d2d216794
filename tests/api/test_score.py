"""POST /v1/score: what is taken, what is refused, and the shape of the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ipc.messages import Delta, Finished, Started, TextEvent, TokenLogprob
from sparkinfer.api.score import parse_score
from sparkinfer.request import ChatPrompt, Continuation, FinishReason, Request, TextPrompt, TokenPrompt
from tests.api.app_server import AppServer
from tests.api.parsing import INFO, new_ids, refused

USER = [{"role": "user", "content": "hi"}]


def score(body: dict[str, Any]) -> Request:
    (request,) = parse_score(body, INFO, new_ids()).requests
    return request


@pytest.mark.parametrize("top", [None, 0, 20])
def test_a_conversation_and_a_text(top: int | None) -> None:
    request = score({"messages": USER, "completion": "Hello<|im_end|>", "top_logprobs": top, "enable_thinking": False})
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.template_kwargs == {"enable_thinking": False}
    assert request.continuation == Continuation(text="Hello<|im_end|>", max_tokens=INFO.max_output_tokens)
    assert request.sampling.prompt_logprobs == (top or 0)
    assert request.sampling.max_tokens == 0
    assert not request.uses_cache


def test_a_text_and_ids() -> None:
    request = score({"prompt": "a", "completion_token_ids": [1, 2]})
    assert request.prompt == TextPrompt(text="a")
    assert request.continuation == Continuation(token_ids=(1, 2), max_tokens=INFO.max_output_tokens)


@pytest.mark.parametrize("body", [{"completion": ["b", "c"]}, {"completion_token_ids": [[1, 2], [3]]}], ids=str)
def test_several_completions_of_one_prompt(body: dict[str, Any]) -> None:
    requests = parse_score({"prompt": "a", **body}, INFO, new_ids()).requests
    assert [request.prompt for request in requests] == [TextPrompt(text="a")] * 2
    (wanted,) = body.values()
    found = [request.continuation for request in requests]
    assert [c and (c.text or list(c.token_ids)) for c in found] == wanted


def test_a_prompt_by_itself() -> None:
    assert score({"messages": USER, "prompt_only": True}).continuation is None
    assert score({"prompt": [1] * 100, "prompt_only": True}).prompt == TokenPrompt(token_ids=(1,) * 100)


BOTH = {"prompt": "a", "completion": "b"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": ({"completion": "b"}, "prompt"),
    "two prompts": ({**BOTH, "messages": USER}, "prompt"),
    "empty prompt": ({"prompt": "", "completion": "b"}, "prompt"),
    "several prompts": ({"prompt": ["a", "b"], "completion": "b"}, "prompt"),
    "prompt number": ({"prompt": 5, "completion": "b"}, "prompt"),
    "no completion": ({"prompt": "a"}, "completion"),
    "two completions": ({**BOTH, "completion_token_ids": [1]}, "completion"),
    "completion and none": ({**BOTH, "prompt_only": True}, "completion"),
    "empty completion": ({"prompt": "a", "completion": ""}, "completion"),
    "no completions": ({"prompt": "a", "completion": []}, "completion"),
    "an empty one of several": ({"prompt": "a", "completion": ["b", ""]}, "completion[1]"),
    "a number among texts": ({"prompt": "a", "completion": ["b", 5]}, "completion[1]"),
    "too many completions": ({"prompt": "a", "completion": ["b"] * 257}, "completion"),
    "ids and lists of ids": ({"prompt": "a", "completion_token_ids": [[1], 2]}, "completion_token_ids[1]"),
    "an empty list of ids": ({"prompt": "a", "completion_token_ids": [[1], []]}, "completion_token_ids[1]"),
    "a list of ids with a text": ({"prompt": "a", "completion_token_ids": [[1, "1"]]}, "completion_token_ids[0][1]"),
    "no ids": ({"prompt": "a", "completion_token_ids": []}, "completion_token_ids"),
    "too many ids": ({"prompt": "a", "completion_token_ids": [1] * 65}, "completion_token_ids"),
    "ids text": ({"prompt": "a", "completion_token_ids": "1"}, "completion_token_ids"),
    "id text": ({"prompt": "a", "completion_token_ids": [1, "1"]}, "completion_token_ids[1]"),
    "id fraction": ({"prompt": "a", "completion_token_ids": [1.5]}, "completion_token_ids[0]"),
    "id negative": ({"prompt": "a", "completion_token_ids": [-1]}, "completion_token_ids[0]"),
    "id beyond": ({"prompt": "a", "completion_token_ids": [1000]}, "completion_token_ids[0]"),
    "top 21": ({**BOTH, "top_logprobs": 21}, "top_logprobs"),
    "top -1": ({**BOTH, "top_logprobs": -1}, "top_logprobs"),
    "top 1.5": ({**BOTH, "top_logprobs": 1.5}, "top_logprobs"),
    "stream": ({**BOTH, "stream": True}, "stream"),
    "empty messages": ({"messages": [], "completion": "b"}, "messages"),
    "prompt_only text": ({"prompt": "a", "prompt_only": "yes"}, "prompt_only"),
}


@pytest.mark.parametrize(("body", "param"), REFUSED.values(), ids=REFUSED)
def test_refused(body: dict[str, Any], param: str) -> None:
    assert refused(score, body).param == param


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"prompt": "a", "prompt": "b", "completion": "c"}'])
def test_bodies_that_are_no_objects(http: httpx.Client, content: bytes) -> None:
    assert http.post("/v1/score", content=content).status_code == 400


def scores(request: Request) -> Iterator[list[TextEvent]]:
    first = TokenLogprob(5, b"\xc3", None, [])
    second = TokenLogprob(6, b"\xa9", -0.5, [(6, b"\xa9", -0.5), (7, b"b", float("-inf"))])
    third = TokenLogprob(9, b"<|end|>", float("nan"), [(6, b"\xa9", -0.25)], in_text=False)
    yield [Started(request.request_id, 3)]
    yield [Delta(request.request_id, 0, "", "", 0, [first])]
    yield [Delta(request.request_id, 0, "é", "", 0, [second, third])]
    yield [Finished(request.request_id, 0, FinishReason.LENGTH, 2, 0, 0, 20.0, 30.0)]


@pytest.mark.parametrize("top", [0, 2])
def test_the_answer(app: AppServer, http: httpx.Client, top: int) -> None:
    app.pool.script = scores
    response = http.post("/v1/score", json={"prompt": "é", "prompt_only": True, "top_logprobs": top})
    document = response.json()
    assert document["id"].startswith("score-")
    assert document["object"] == "score"
    assert document["model"] == "tiny"
    assert document["tokens"] == ["\ufffd", "\ufffd", "<|end|>"]
    assert document["token_ids"] == [5, 6, 9]
    assert document["bytes"] == [[0xC3], [0xA9], list(b"<|end|>")]
    assert document["logprobs"] == [None, -0.5, -9999.0]
    assert math.isclose(document["sum_logprob"], -9999.5)
    assert (document["usage"]["prompt_tokens"], document["usage"]["completion_tokens"]) == (3, 2)
    if not top:
        assert "top_logprobs" not in document
        return
    assert [len(entries) for entries in document["top_logprobs"]] == [0, 2, 1]
    assert document["top_logprobs"][1][1] == {"token": "b", "token_id": 7, "logprob": -9999.0, "bytes": [98]}


@pytest.mark.parametrize("completions", [["é"], ["é", "é", "é"]], ids=len)
def test_the_answer_of_a_batch(app: AppServer, http: httpx.Client, completions: list[str]) -> None:
    app.pool.script = scores
    document = http.post("/v1/score", json={"prompt": "a", "completion": completions}).json()
    assert document["object"] == "list"
    assert [score["index"] for score in document["data"]] == list(range(len(completions)))
    assert all(score["object"] == "score" and score["token_ids"] == [5, 6, 9] for score in document["data"])
    assert document["usage"]["prompt_tokens"] == 3 * len(completions)


def test_an_answer_of_thousands_of_alternatives(app: AppServer, http: httpx.Client) -> None:
    """Too many to be written between two tokens of somebody's stream."""
    entries = [TokenLogprob(i, b"a", -0.5, [(j, b"b", -1.0) for j in range(20)]) for i in range(256)]

    def script(request: Request) -> Iterator[list[TextEvent]]:
        yield [Started(request.request_id, 3)]
        yield [Delta(request.request_id, 0, "a" * 256, "", 0, entries)]
        yield [Finished(request.request_id, 0, FinishReason.LENGTH, 256, 0, 0, 20.0, 30.0)]

    app.pool.script = script
    document = http.post("/v1/score", json={"prompt": "a", "prompt_only": True, "top_logprobs": 20}).json()
    assert len(document["tokens"]) == 256
    assert [len(top) for top in document["top_logprobs"]] == [20] * 256

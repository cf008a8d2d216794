"""tokenize, detokenize, apply-template: what they check and how they answer."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

CHAT = {"messages": [{"role": "user", "content": "née"}]}
LIMITS = {"max_context": 512, "max_output_tokens": 64, "model": "tiny"}


def test_tokenize_counts(http: httpx.Client) -> None:
    assert http.post("/v1/tokenize", json=CHAT).json() == {"tokens": 3, **LIMITS}


def test_tokenize_returns_what_is_asked_for(http: httpx.Client) -> None:
    document = http.post("/v1/tokenize", json=CHAT | {"return_token_ids": True}).json()
    assert (document["token_ids"], "pieces" in document) == ([0, 1, 2], False)
    document = http.post("/v1/tokenize", json={"prompt": "é", "return_pieces": True}).json()
    assert document["pieces"] == [{"id": 0, "piece": "é", "bytes": [0xC3, 0xA9]}]


def test_apply_template(http: httpx.Client) -> None:
    document = http.post("/v1/apply-template", json=CHAT | {"add_generation_prompt": False}).json()
    assert document == {"prompt": "née", "tokens": 3, **LIMITS}


@pytest.mark.parametrize("key", ["token_ids", "tokens"])
def test_detokenize(http: httpx.Client, key: str) -> None:
    document = http.post("/v1/detokenize", json={key: [5, 999]}).json()
    assert document == {"text": "(5, 999) False", "tokens": 2, "model": "tiny"}
    assert http.post("/v1/detokenize", json={key: []}).json()["tokens"] == 0


BAD = [
    ("/v1/detokenize", {}, "token_ids"), ("/v1/detokenize", {"tokens": [1000]}, "tokens[0]"),
    ("/v1/detokenize", {"token_ids": [0, -1]}, "token_ids[1]"), ("/v1/detokenize", {"token_ids": "a"}, "token_ids"),
    ("/v1/detokenize", {"token_ids": [1.5]}, "token_ids[0]"), ("/v1/detokenize", {"token_ids": [True]}, "token_ids[0]"),
    ("/v1/detokenize", {"token_ids": [1], "skip_special_tokens": 1}, "skip_special_tokens"),
    ("/v1/apply-template", {"prompt": "x"}, "messages"), ("/v1/apply-template", {"messages": []}, "messages"),
    ("/v1/tokenize", CHAT | {"prompt": "x"}, "prompt"), ("/v1/detokenize", {"token_ids": [], "tokens": []}, "tokens"),
    ("/v1/tokenize", {"prompt": ["a", "b"]}, "prompt"), ("/v1/tokenize", {"prompt": ""}, "prompt"),
    ("/v1/tokenize", CHAT | {"return_pieces": "yes"}, "return_pieces"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param"), BAD)
def test_what_is_wrong_is_named(http: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    response = http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)

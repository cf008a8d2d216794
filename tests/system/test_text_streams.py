"""Text as it leaves the service, token by token: characters, stop strings, shapes.

The scripted engine repeats the prompt's tokens, so that a prompt of chosen tokens is an answer of chosen tokens.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.system.harness import Server


@pytest.fixture(scope="module")
def client(scripted_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{scripted_server.url}/v1", timeout=30) as made:
        yield made


def pieces_of(client: httpx.Client, text: str) -> list[tuple[int, bytes]]:
    """Token ids and bytes of plain text."""
    reply = client.post("/tokenize", json={"prompt": text, "return_pieces": True}).json()
    return [(piece["id"], bytes(piece["bytes"])) for piece in reply["pieces"]]


def say(client: httpx.Client, token_ids: list[int], **fields: Any) -> dict[str, Any]:
    body = {"prompt": token_ids, "max_tokens": len(token_ids), "temperature": 0, "ignore_eos": True, **fields}
    response = client.post("/completions", json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def stream(client: httpx.Client, token_ids: list[int], **fields: Any) -> list[dict[str, Any]]:
    """The chunks of the same, checked for what every stream must be."""
    body = {"prompt": token_ids, "max_tokens": len(token_ids), "temperature": 0, "ignore_eos": True, "stream": True}
    response = client.post("/completions", json=body | fields)
    *events, done = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    for index in range(fields.get("n", 1)):
        ends = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert [end for end in ends if end] == ends[-1:], "one finish reason, in the choice's last chunk"
    assert [chunk["choices"] for chunk in chunks if chunk.get("usage")] == [[]]
    return chunks


def texts_of(chunks: list[dict[str, Any]]) -> list[str]:
    return [chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]]


CHARACTERS = ["Málaga 🌧️ 漢字 😀!", "👩‍👩‍👧‍👦", "ﷺ é e\u0301 \u200d", "plain"]


@pytest.mark.parametrize("text", CHARACTERS)
def test_characters_of_several_tokens_stay_whole(client: httpx.Client, text: str) -> None:
    token_ids = [token_id for token_id, _ in pieces_of(client, text)]
    reply = say(client, token_ids, logprobs=0)
    shown = texts_of(stream(client, token_ids))
    assert reply["choices"][0]["text"] == "".join(shown) == text
    assert "\ufffd" not in "".join(shown)
    assert len(reply["choices"][0]["logprobs"]["tokens"]) == len(token_ids)


def test_a_character_cut_off_by_max_tokens_is_one_replacement(client: httpx.Client) -> None:
    pieces = pieces_of(client, "ab 😀")
    last = next(n for n, (_, data) in enumerate(pieces) if not data.isascii())
    token_ids = [token_id for token_id, _ in pieces]
    reply = say(client, token_ids, max_tokens=last + 1)
    assert reply["choices"][0]["text"] == "".join(texts_of(stream(client, token_ids, max_tokens=last + 1)))
    assert reply["choices"][0]["text"].rstrip("\ufffd") == "ab" + " " * pieces[last][1].startswith(b" ")
    assert reply["choices"][0]["text"].count("\ufffd") == 1
    assert reply["choices"][0]["finish_reason"] == "length"


def test_a_lone_continuation_byte_is_one_replacement_and_its_byte_is_kept(client: httpx.Client) -> None:
    (token_id, data) = next(piece for piece in pieces_of(client, "😀🌧️漢") if len(piece[1]) == 1 and piece[1][0] > 0x7F)
    reply = say(client, [token_id, token_id], logprobs=0)
    assert reply["choices"][0]["text"] == "\ufffd\ufffd"
    assert reply["choices"][0]["logprobs"]["tokens"] == [f"bytes:\\x{data[0]:02x}"] * 2


STOPS: dict[str, tuple[list[str], str, str, str]] = {
    "in one token": (["END"], "one END two", "one ", "stop"),
    "across tokens": (["e two th"], "one two three", "on", "stop"),
    "the earliest of several": (["two", "one"], "zero one two", "zero ", "stop"),
    "a shorter beginning wins": (["abc", "ab"], "xabc", "x", "stop"),
    "never there": (["never"], "all of it", "all of it", "length"),
    "only its beginning": (["it all"], "all of it", "all of it", "length"),
    "none": ([], "all of it", "all of it", "length"),
    "longer than the answer": (["x" * 1000], "all of it", "all of it", "length"),
    "a NUL in it": (["f\x00i"], "all of\x00it", "all o", "stop"),
    "half a character before it": (["😀"], "one 😀 two", "one ", "stop"),
}


@pytest.mark.parametrize("case", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize("logprobs", [None, 1])
def test_stop_strings(client: httpx.Client, case: tuple[list[str], str, str, str], logprobs: int | None) -> None:
    stop, text, shown, reason = case
    token_ids = [token_id for token_id, _ in pieces_of(client, text)]
    (choice,) = say(client, token_ids, stop=stop, logprobs=logprobs)["choices"]
    assert (choice["text"], choice["finish_reason"]) == (shown, reason)
    chunks = stream(client, token_ids, stop=stop, logprobs=logprobs)
    assert "".join(texts_of(chunks)) == shown
    if logprobs is not None:
        parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"] and c["choices"][0]["logprobs"]]
        assert [token for part in parts for token in part["tokens"]] == choice["logprobs"]["tokens"]


def test_only_what_could_become_a_stop_string_is_held_back(client: httpx.Client) -> None:
    """Every chunk ends where a token ends, though each character could be followed by a stop string."""
    pieces = pieces_of(client, "some ordinary words of text. " * 4)
    ends = set(itertools.accumulate(len(data) for _, data in pieces))
    shown = texts_of(stream(client, [token_id for token_id, _ in pieces], stop=["\n\n###END###"]))
    assert len(shown) > 10
    assert set(itertools.accumulate(map(len, shown))) <= ends


def test_every_choice_stops_and_counts_by_itself(client: httpx.Client) -> None:
    token_ids = [token_id for token_id, _ in pieces_of(client, "one END two")]
    reply = say(client, token_ids, stop="END", n=3)
    assert [(c["index"], c["text"], c["finish_reason"]) for c in reply["choices"]] == [
        (index, "one ", "stop") for index in range(3)
    ]
    usage = reply["usage"]
    assert usage["prompt_tokens"] == len(token_ids), "counted once"
    assert usage["completion_tokens"] % 3 == 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert len(stream(client, token_ids, stop="END", n=3)) >= 6


@pytest.mark.parametrize("options", [None, {}, {"include_usage": None}, {"include_usage": True}])
def test_usage_comes_last_whatever_the_options(client: httpx.Client, options: dict[str, Any] | None) -> None:
    *_, last = stream(client, [504, 505], stream_options=options)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2


def test_options_of_a_stream_without_one_are_ignored(client: httpx.Client) -> None:
    assert say(client, [504], stream_options={"include_usage": True})["usage"]["completion_tokens"] == 1

"""From tokens to bytes: however an answer is cut into steps, its stream says what its whole document says."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ipc.messages import Delta, Finished, SequenceFinished
from sparkinfer.api.chat_reply import ChatReply
from sparkinfer.api.completions_reply import CompletionReply
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.reply import Choice
from sparkinfer.api.usage import Usage
from sparkinfer.request import FinishReason, Request, RequestId, TextPrompt
from sparkinfer.sampling_params import SamplingParams
from sparkinfer.text.choice_stream import ReplyFormat, StreamOptions
from sparkinfer.text.content_filter import ContentOptions
from sparkinfer.text.entry_pairing import TokenEntry
from sparkinfer.text.prompt_encoder import EncodedPrompt
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.text.tool_protocols.protocol import ToolProtocol
from tests.text.tool_protocols.replies import offer
from workers.text_request import OpenRequest

INFO = ModelInfo(model="tiny", max_model_len=512, max_output_tokens=64, vocab_size=300)

# Every byte is a token, so that markers and characters are cut anywhere; then some that are longer, and control tokens.
WORDS = ["hello", " wor", "ld", "<th", "ink>", "</th", "END"]
CONTROL = ["<|im_end|>", "<think>", "</think>"]


def _byte_names() -> list[str]:
    """The 256 bytes as byte-level vocabularies write them."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    names = {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [names[byte] for byte in range(256)]


TOKENS = [*_byte_names(), *(word.replace(" ", "Ġ") for word in WORDS), *CONTROL]
TOKENIZER = Tokenizer.from_metadata({
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * (256 + len(WORDS)) + [3, 4, 4],
})  # fmt: skip

CALL = '<tool_call>\n{"name": "open", "arguments": {"text": "é<tool"}}\n</tool_call>'
TEXTS = ["", "plan", "one two END three", "é漢😀", "x < y <tool_", "</thin", CALL, f"{CALL}\n{CALL}"]


def token_ids(text: str) -> list[int]:
    return list(text.encode())


outputs = st.lists(
    st.sampled_from([*map(token_ids, TEXTS), *([n] for n in range(256, len(TOKENS))), [0xF0, 0x9F], [0x80]]), max_size=8
).map(lambda parts: [token_id for part in parts for token_id in part])  # fmt: skip
cuts = st.lists(st.integers(1, 7), min_size=1, max_size=8)


def play(open_request: OpenRequest, output: list[int], sizes: list[int]) -> list[Delta | Finished]:
    """The events of an answer whose tokens arrive in steps of these sizes, over and over."""
    stream, events = open_request.choices[0], []
    at = turn = 0
    while at < len(output) and not stream.has_ended:
        for token_id in output[at : at + sizes[turn % len(sizes)]]:
            entry = TokenEntry(token_id, -0.5, [(token_id, -0.5)]) if open_request.request.sampling.logprobs else None
            stream.push(token_id, entry)
        at += sizes[turn % len(sizes)]
        turn += 1
        events += [open_request.delta(0, delta) for delta in stream.take()]
    events += open_request.finish(SequenceFinished(RequestId(1), 0, FinishReason.STOP, 0, 1.0, 2.0))
    return events


def open_request(options: StreamOptions, logprobs: int | None) -> OpenRequest:
    sampling = SamplingParams(max_tokens=99, logprobs=logprobs)
    made = OpenRequest(Request(request_id=RequestId(1), prompt=TextPrompt(text="x"), sampling=sampling), 0)
    made.start(EncodedPrompt([0], 99, options, []), TOKENIZER)
    return made


def answer(reply: Any, events: list[Delta | Finished]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Chunks of the stream, and the choice of the whole document."""
    choice, stream = Choice(0), reply.start(0, "", 1)
    for event in events:
        if isinstance(event, Delta):
            stream += reply.delta(0, event)
            choice.add(event)
        else:
            choice.finish_reason = FinishReason(event.finish_reason)
            stream += reply.finish(0, choice.finish_reason)
    lines = [line[6:] for line in stream.decode().split("\n\n") if line]
    document = json.loads(reply.document([choice], Usage()))
    return [json.loads(line)["choices"][0] for line in lines], document["choices"][0]


def assembled(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a chat's stream."""
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        for call in chunk["delta"].get("tool_calls", []):
            if call["index"] == len(calls):
                calls.append({key: call[key] for key in ("id", "type")} | {"function": dict(call["function"])})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return {
        "content": "".join(chunk["delta"].get("content") or "" for chunk in chunks),
        "reasoning": "".join(chunk["delta"].get("reasoning") or "" for chunk in chunks),
        "tool_calls": calls,
        "logprobs": [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]],
        "finish_reason": [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]],
    }


def as_assembled(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning", ""),
        "tool_calls": message.get("tool_calls", []),
        "logprobs": (choice["logprobs"] or {"content": []})["content"],
        "finish_reason": [choice["finish_reason"]],
    }


@settings(max_examples=250, deadline=None)
@given(
    outputs, cuts, st.sampled_from([(), ("END",), ("two", "é")]), st.booleans(), st.booleans(),
    st.sampled_from([None, 1]),
)  # fmt: skip
@example(token_ids("a😀"), [1], (), False, False, 1)
@example(token_ids(f"why</think>so {CALL}"), [2, 5], (), True, True, 1)
def test_chat(
    output: list[int], sizes: list[int], stop: tuple[str, ...], starts_in_reasoning: bool, has_tools: bool,
    logprobs: int | None,
) -> None:  # fmt: skip
    results = []
    for cut in (sizes, [len(output) + 1]):
        offered = offer() if has_tools else None  # it numbers the calls: each time anew
        content = ContentOptions(stop, offered, ToolProtocol.HERMES)
        options = StreamOptions(content, ReplyFormat.THINK, starts_in_reasoning)
        request = open_request(options, logprobs)
        events = play(request, output, cut)
        if request.choices[0].failure is not None:
            return
        chunks, choice = answer(ChatReply("ab", 1, INFO), events)
        assert assembled(chunks) == as_assembled(choice)
        results.append(as_assembled(choice))
    assert results[0] == results[1]


@settings(max_examples=150, deadline=None)
@given(outputs, cuts, st.sampled_from([(), ("END",), ("two", "é")]), st.sampled_from([None, 1]))
def test_completion(output: list[int], sizes: list[int], stop: tuple[str, ...], logprobs: int | None) -> None:
    results = []
    for cut in (sizes, [len(output) + 1]):
        request = open_request(StreamOptions(ContentOptions(stop)), logprobs)
        chunks, choice = answer(CompletionReply("ab", 1, INFO), play(request, output, cut))
        assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
        whole = choice["logprobs"] or {}
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset") if whole else ():
            parts = [chunk["logprobs"][name] for chunk in chunks if chunk["logprobs"]]
            assert [value for part in parts for value in part] == whole[name]
        results.append(choice)
    assert results[0] == results[1]

"""An open request: its logprobs agree with its text, control tokens included; why each choice ended."""

from __future__ import annotations

import pytest

from ipc.messages import Finished, SequenceFinished, TextEvent
from sparkinfer.api.logprobs import CompletionLogprobs
from sparkinfer.request import FinishReason, Request, RequestId, TextPrompt
from sparkinfer.sampling_params import SamplingParams
from sparkinfer.text.choice_stream import StreamOptions
from sparkinfer.text.content_filter import ContentOptions
from sparkinfer.text.entry_pairing import TokenEntry
from sparkinfer.text.prompt_encoder import EncodedPrompt
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.text.tool_protocols.call_writer import OfferedTool, ToolOffer
from workers.text_request import OpenRequest

TOKENS = ["a", "bc", "<|im_end|>", "é".encode().decode("latin-1")]
TOKENIZER = Tokenizer.from_metadata({
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1, 1, 3, 1],
})


def test_offsets_point_into_the_text() -> None:
    sampling = SamplingParams(max_tokens=9, logprobs=0, ignore_eos=True)
    request = Request(request_id=RequestId(1), prompt=TextPrompt(text="x"), sampling=sampling)
    open_request = OpenRequest(request, 0)
    open_request.start(EncodedPrompt([0], 9, StreamOptions(), []), TOKENIZER)
    stream = open_request.choices[0]
    for token_id in (0, 2, 1, 2, 3, 0):
        stream.push(token_id, TokenEntry(token_id, -1.0, []))
    deltas = [open_request.delta(0, delta) for delta in [*stream.take(), *stream.finish()]]
    text = "".join(delta.content for delta in deltas)
    entries = [entry for delta in deltas for entry in delta.logprobs or []]
    shown = CompletionLogprobs(start=0).render(entries)
    assert text == "abcéa"
    assert shown["tokens"] == ["a", "<|im_end|>", "bc", "<|im_end|>", "é", "a"]
    assert shown["text_offset"] == [0, 1, 1, 3, 3, 4]
    assert [text[start:start + 1] for start in shown["text_offset"]] == ["a", "b", "b", "é", "é", "a"]


def ended(stop_string: str = "", text: str = "", reason: FinishReason = FinishReason.STOP) -> list[TextEvent]:
    """The last events of a choice that may call `f` and said `text`."""
    offer = ToolOffer((OfferedTool("f", {"type": "object"}, is_live=True),))
    stream = StreamOptions(ContentOptions((stop_string,) if stop_string else (), offer))
    request = Request(request_id=RequestId(1), prompt=TextPrompt(text="x"), sampling=SamplingParams(max_tokens=9))
    tokens = sorted(set(text)) or ["a"]
    tokenizer = Tokenizer.from_metadata({
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
    })  # fmt: skip
    open_request = OpenRequest(request, 0)
    open_request.start(EncodedPrompt([0], 9, stream, []), tokenizer)
    for char in text:
        open_request.choices[0].push(tokens.index(char))
    return list(open_request.finish(SequenceFinished(RequestId(1), 0, reason, 0, 1.0, 2.0)))


CALL = '<tool_call>{"name":"f"}</tool_call>'
ENDS = [
    ("", "hi", FinishReason.STOP, FinishReason.STOP),
    ("", CALL, FinishReason.STOP, FinishReason.TOOL_CALLS),
    ("", CALL, FinishReason.LENGTH, FinishReason.LENGTH),
    ("", CALL[:-3], FinishReason.LENGTH, FinishReason.LENGTH),
    ("i", "hi" + CALL, FinishReason.ABORT, FinishReason.STOP),
]


@pytest.mark.parametrize(("stop", "text", "reason", "told"), ENDS)
def test_why_a_choice_ended(stop: str, text: str, reason: FinishReason, told: FinishReason) -> None:
    last = ended(stop, text, reason)[-1]
    assert isinstance(last, Finished)
    assert last.finish_reason == told


def test_a_choice_that_cannot_be_used_has_no_good_end() -> None:
    assert not any(isinstance(event, Finished) for event in ended("", CALL[:-3]))

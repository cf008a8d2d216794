"""Logprobs of a completion agree with its text, control tokens in the middle of it included."""

from __future__ import annotations

from sparkinfer.api.logprobs import CompletionLogprobs
from sparkinfer.request import Request, RequestId, TextPrompt
from sparkinfer.sampling_params import SamplingParams
from sparkinfer.text.choice_stream import StreamOptions
from sparkinfer.text.entry_pairing import TokenEntry
from sparkinfer.text.prompt_encoder import EncodedPrompt
from sparkinfer.text.tokenizer import Tokenizer
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

"""What is scored: where it begins, what fits, and what needs no grammar."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.errors import RequestError
from sparkinfer.request import (
    ChatPrompt,
    Continuation,
    JsonObjectFormat,
    Message,
    OutputFormat,
    Prompt,
    Request,
    RequestId,
    TextPrompt,
)
from sparkinfer.sampling_params import SamplingParams
from sparkinfer.text.prompt_encoder import EncodedPrompt, PromptEncoder

CHAT = ChatPrompt(messages=(Message(role="user", content="Hi"),))


@pytest.fixture(scope="module")
def encoder(embedded_model: Path) -> PromptEncoder:
    return PromptEncoder.from_gguf(GGUFFile.open(embedded_model))


def encode(
    encoder: PromptEncoder, prompt: Prompt, continuation: Continuation | None = None, max_model_len: int = 64,
    output_format: OutputFormat | None = None,
) -> EncodedPrompt:
    request = Request(
        request_id=RequestId(1), prompt=prompt, sampling=SamplingParams(max_tokens=0, prompt_logprobs=0),
        continuation=continuation, output_format=output_format,
    )  # fmt: skip
    return encoder.encode_request(request, max_model_len)


@pytest.mark.parametrize("text", [" world", "world", "é😀", "<|im_end|>", "x"])
def test_a_continuation_follows_the_prompt_as_plain_text(encoder: PromptEncoder, text: str) -> None:
    encoded = encode(encoder, TextPrompt(text="hello"), Continuation(text=text, max_tokens=30))
    tokens = encoded.token_ids[encoded.scored_from :]
    assert len(tokens) == encoded.num_continued_tokens
    assert encoder.tokenizer.decode(tokens, skip_special=True) == text
    assert encoder.tokenizer.decode(encoded.token_ids) == f"hello{text}"


def test_ids_are_taken_as_they_are(encoder: PromptEncoder) -> None:
    encoded = encode(encoder, CHAT, Continuation(token_ids=(2, 5), max_tokens=30))
    assert encoded.token_ids[encoded.scored_from :] == [2, 5]


def test_a_prompt_by_itself_is_scored_from_its_start(encoder: PromptEncoder) -> None:
    encoded = encode(encoder, CHAT)
    assert (encoded.scored_from, encoded.num_continued_tokens, encoded.echo) == (0, 0, "")


def test_what_is_not_generated_needs_no_grammar(encoder: PromptEncoder) -> None:
    assert encode(encoder, CHAT, output_format=JsonObjectFormat(), max_model_len=500).grammar_spec is None


def test_all_of_the_context_may_be_used(encoder: PromptEncoder) -> None:
    prompt, continuation = TextPrompt(text="a b c"), Continuation(token_ids=(5,) * 7, max_tokens=9)
    assert len(encode(encoder, prompt, continuation, max_model_len=10).token_ids) == 10
    with pytest.raises(RequestError) as refused:
        encode(encoder, prompt, continuation, max_model_len=9)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.details == {"n_prompt_tokens": 3, "n_ctx": 9}
    assert "10 tokens (3 in the prompt, 7 in the completion)" in refused.value.message


@pytest.mark.parametrize(
    "continuation", [Continuation(text="a b c d", max_tokens=3), Continuation(text="a" * 10**6, max_tokens=50),
                     Continuation(token_ids=(5,) * 4, max_tokens=3)],
)  # fmt: skip
def test_a_continuation_longer_than_an_answer_is_refused(encoder: PromptEncoder, continuation: Continuation) -> None:
    with pytest.raises(RequestError, match="must have 1 to") as refused:
        encode(encoder, TextPrompt(text="a"), continuation)
    assert refused.value.param == ("completion_token_ids" if continuation.token_ids else "completion")

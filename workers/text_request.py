"""A request inside the text worker, between Submit and its last event. Knows streams of text; never rings."""

from __future__ import annotations

from collections.abc import Iterator

from ipc.messages import Delta, Finished, SequenceFinished, TextEvent, TokenLogprob
from sparkinfer.request import FinishReason, Request
from sparkinfer.text.choice_stream import ChoiceStream, TextDelta
from sparkinfer.text.prompt_encoder import EncodedPrompt
from sparkinfer.text.tokenizer import Tokenizer


class OpenRequest:
    """Invariant: `encoded` is set, and there is a stream for each choice, from `start` on."""

    def __init__(self, request: Request, reply_to: int) -> None:
        """reply_to: index of the http worker that asked."""
        self.request = request
        self.reply_to = reply_to
        self.encoded: EncodedPrompt | None = None
        self.choices: list[ChoiceStream] = []
        self.num_open = request.n

    def start(self, encoded: EncodedPrompt, tokenizer: Tokenizer) -> None:
        """The prompt is on its way to the scheduler."""
        self.encoded = encoded
        self.choices = [ChoiceStream(tokenizer, encoded.stream) for _ in range(self.request.n)]
        self._tokenizer = tokenizer

    def delta(self, choice: int, delta: TextDelta) -> Delta:
        """The event for new text of one choice."""
        logprobs = self._logprobs(delta) if self.request.sampling.logprobs is not None else None
        return Delta(self.request.request_id, choice, delta.content, delta.reasoning, delta.num_tokens, logprobs)

    def finish(self, event: SequenceFinished) -> Iterator[TextEvent]:
        """The last events of one choice: text that was held back, if any, and its end."""
        stream = self.choices[event.choice]
        for delta in stream.finish():
            yield self.delta(event.choice, delta)
        self.num_open -= 1
        yield Finished(
            event.request_id,
            event.choice,
            event.finish_reason if stream.stop_string is None else FinishReason.STOP,
            stream.num_tokens,
            stream.num_reasoning_tokens,
            event.num_cached_tokens,
            event.ttft_ms,
            event.generation_ms,
            stream.stop_string,
            event.queue_ms,
            event.cache,
        )

    def _logprobs(self, delta: TextDelta) -> list[TokenLogprob]:
        token_bytes = self._tokenizer.token_bytes
        return [
            TokenLogprob(
                entry.token_id,
                token_bytes(entry.token_id),
                entry.logprob,
                [(token_id, token_bytes(token_id), logprob) for token_id, logprob in entry.top],
                in_text=not self._tokenizer.is_special(entry.token_id),
            )
            for entry in delta.entries
        ]

"""A request inside the text worker, between Submit and its last event. Knows streams of text; never rings."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterator

import msgspec
import numpy as np

from ipc.messages import Delta, Finished, Generate, SequenceFinished, Started, TextEvent, TokenLogprob
from ipc.worker_spec import WorkerSpec
from sparkinfer.request import FinishReason, Request
from sparkinfer.sampling_params import SamplingParams
from sparkinfer.text.choice_stream import ChoiceStream, TextDelta
from sparkinfer.text.entry_pairing import TokenEntry
from sparkinfer.text.prompt_encoder import EncodedPrompt
from sparkinfer.text.tokenizer import Tokenizer
from workers.text_scores import ScoredPrompt


class OpenRequest:
    """Invariant: `encoded` is set, and there is a stream for each choice, from `start` on."""

    def __init__(self, request: Request, reply_to: int) -> None:
        """reply_to: index of the http worker that asked."""
        self.request = request
        self.reply_to = reply_to
        self.encoded: EncodedPrompt | None = None
        self.choices: list[ChoiceStream] = []
        self._prompts: list[ScoredPrompt] = []  # one for each choice, when it is scored
        self.num_open = request.n

    def start(self, encoded: EncodedPrompt, tokenizer: Tokenizer, approximations: tuple[str, ...] = ()) -> None:
        """The prompt is on its way to the scheduler.

        approximations: what of the answer's form its grammar does not hold
        """
        self.encoded = encoded
        self.approximations = approximations
        stream = encoded.stream
        if encoded.grammar_spec is not None:
            stream = dataclasses.replace(stream, content=stream.content.enforced(approximations))
        self.choices = [ChoiceStream(tokenizer, stream) for _ in range(self.request.n)]
        self._tokenizer = tokenizer
        if self.request.sampling.prompt_logprobs is not None:
            self._prompts = [
                ScoredPrompt(tokenizer, encoded.token_ids, encoded.scored_from) for _ in range(self.request.n)
            ]

    def _sampling(self) -> SamplingParams:
        """The client's controls plus what only we know: the context's room, the model's stop tokens, a seed."""
        assert self.encoded is not None
        sampling = self.request.sampling
        ignores_eos = sampling.ignore_eos and self.encoded.grammar_spec is None  # a grammar has an end
        own_stops = () if ignores_eos else tuple(sorted(self._tokenizer.stop_token_ids))
        return msgspec.structs.replace(
            sampling,
            max_tokens=min(sampling.max_tokens, self.encoded.max_tokens),
            prompt_logprobs_from=self.encoded.scored_from,
            stop_token_ids=sampling.stop_token_ids + own_stops,
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
        )

    def generate(self, worker: WorkerSpec, mask_rows: list[int]) -> Generate:
        """What the scheduler is told.

        worker:     who wants the tokens
        mask_rows:  of the choices; empty without a grammar
        """
        assert self.encoded is not None
        request, encoded = self.request, self.encoded
        return Generate(
            request_id=request.request_id,
            reply_to=worker.index,
            generation=worker.generation,
            prompt_token_ids=np.asarray(encoded.token_ids, dtype="<i4").tobytes(),
            sampling=self._sampling(),
            n=request.n,
            priority=request.priority,
            client_id=request.client_id,
            turn_starts=encoded.turn_starts,
            uses_cache=request.uses_cache,
            explain_cache=request.explain_cache,
            mask_rows=mask_rows,
            sent_at=time.monotonic(),
        )

    @property
    def _num_prompt_tokens(self) -> int:
        assert self.encoded is not None
        return len(self.encoded.token_ids) - self.encoded.num_continued_tokens

    def accepted(self) -> Iterator[TextEvent]:
        """The scheduler has taken it."""
        assert self.encoded is not None
        yield Started(self.request.request_id, self._num_prompt_tokens, self.encoded.echo)
        for choice, prompt in enumerate(self._prompts):
            yield from self._scored(choice, prompt.start())

    def scored(self, choice: int, entries: list[TokenEntry]) -> Iterator[TextEvent]:
        """The events for scores of the prompt."""
        return self._scored(choice, self._prompts[choice].push(entries))

    def _scored(self, choice: int, deltas: list[TextDelta]) -> Iterator[TextEvent]:
        for delta in deltas:
            yield Delta(self.request.request_id, choice, delta.content, "", 0, self._logprobs(delta))

    def delta(self, choice: int, delta: TextDelta) -> Delta:
        """The event for new text of one choice."""
        logprobs = self._logprobs(delta) if self.request.sampling.logprobs is not None else None
        return Delta(
            self.request.request_id, choice, delta.content, delta.reasoning, delta.num_tokens, logprobs,
            list(delta.tool_calls),
        )  # fmt: skip

    def finish(self, event: SequenceFinished) -> Iterator[TextEvent]:
        """The last events of one choice: text that was held back, if any, and its end, if it came to a good one."""
        stream = self.choices[event.choice]
        for delta in stream.finish(is_complete=event.finish_reason == FinishReason.STOP):
            yield self.delta(event.choice, delta)
        if stream.failure is not None:
            return
        self.num_open -= 1
        yield Finished(
            event.request_id,
            event.choice,
            _finish_reason(stream, event),
            stream.num_tokens + (self.encoded.num_continued_tokens if self.encoded else 0),
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


def _finish_reason(stream: ChoiceStream, event: SequenceFinished) -> int:
    if stream.stop_string is not None:
        return FinishReason.STOP
    if event.finish_reason == FinishReason.STOP and stream.num_calls:
        return FinishReason.TOOL_CALLS
    return event.finish_reason

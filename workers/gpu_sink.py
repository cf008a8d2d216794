"""The gpu scheduler's way out: what a step brought, as frames on the rings to the text workers."""

from __future__ import annotations

from ipc.messages import SequenceEvent, SequenceFinished, SequenceQueued
from ipc.token_frame import MAX_SCORES, SCORES, TokenFrameWriter, pack_events
from sparkinfer.engine.scheduler_output import Logprobs
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import FinishReason
from workers.process import WorkerContext


class RingSink:
    """Publishes the engine's news: per step one token frame and one event frame at most to each text worker."""

    def __init__(self, context: WorkerContext) -> None:
        self._writers = {int(name.partition("-")[2]): writer for name, writer in context.writers.items()}
        self._frames = {index: TokenFrameWriter() for index in self._writers}

    def publish(self, events: StepEvents) -> None:
        """Queued first, then scores, tokens and finished: the order in which a text worker needs them."""
        for index, writer in self._writers.items():
            queued: list[SequenceEvent] = [SequenceQueued(s.request_id) for s in events.queued if s.reply_to == index]
            if queued:
                writer.push(pack_events(queued))
        self._push_scores(events)
        self._push_tokens(events)
        for index, writer in self._writers.items():
            finished: list[SequenceEvent] = [
                SequenceFinished(
                    s.request_id, s.choice, s.finish_reason or FinishReason.ERROR, s.num_cached_tokens,
                    s.ttft_ms, s.generation_ms, s.status_code, s.code, s.message, s.queue_ms,
                    s.cache_report,
                )
                for s in events.finished
                if s.reply_to == index
            ]
            if finished:
                writer.push(pack_events(finished))
            writer.ring()

    def _push_scores(self, events: StepEvents) -> None:
        frame = TokenFrameWriter(SCORES)
        for sequence, token_ids, scores in events.scores:
            writer = self._writers.get(sequence.reply_to)
            if writer is None:
                continue
            for token_id, entry in zip(token_ids, scores):
                top = list(zip(entry.top_token_ids, entry.top_logprobs))
                frame.append(sequence.request_id, sequence.choice, token_id, entry.logprob, top)
                if len(frame) == MAX_SCORES:
                    writer.push(frame.to_bytes())
            if len(frame):
                writer.push(frame.to_bytes())

    def _push_tokens(self, events: StepEvents) -> None:
        logprobs: list[Logprobs | None] = events.logprobs or [None] * len(events.sequences)
        for sequence, token_id, entry in zip(events.sequences, events.token_ids, logprobs):
            frame = self._frames.get(sequence.reply_to)
            if frame is None:
                continue
            if entry is None:
                frame.append(sequence.request_id, sequence.choice, token_id)
            else:
                top = list(zip(entry.top_token_ids, entry.top_logprobs))
                frame.append(sequence.request_id, sequence.choice, token_id, entry.logprob, top)
        for index, frame in self._frames.items():
            if len(frame):
                self._writers[index].push(frame.to_bytes())

    def flush(self) -> None:
        """Retry what did not fit a full ring."""
        for writer in self._writers.values():
            writer.ring()

    def reset(self, index: int) -> None:
        """The text worker died: forget what waits for it."""
        self._writers[index].reset()

    def unread(self) -> list[int]:
        """Text workers that stopped reading and lost frames."""
        return [index for index, writer in self._writers.items() if writer.overflowed]

"""What the engine's tests share: an Engine over scripted tokens, and a sink that keeps what it is told."""

from __future__ import annotations

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, echo_script
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.sampling_params import SamplingParams

EOS = 0


class RecordingSink:
    """Keeps everything, and checks that nothing follows an end."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.finished: dict[tuple[int, int], object] = {}
        self.queued: list[int] = []
        self.batches: list[StepEvents] = []

    def publish(self, events: StepEvents) -> None:
        assert events
        self.batches.append(events)
        self.queued += [sequence.request_id for sequence in events.queued]
        for sequence, token_id in zip(events.sequences, events.token_ids, strict=True):
            key = (sequence.request_id, sequence.choice)
            assert key not in self.finished
            self.tokens.setdefault(key, []).append(token_id)
        if events.logprobs is not None:
            assert len(events.logprobs) == len(events.token_ids)
        for sequence in events.finished:
            key = (sequence.request_id, sequence.choice)
            assert key not in self.finished
            self.finished[key] = sequence


class Clock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def sampling(**controls) -> SamplingParams:
    """What a text worker sends: with the model's own stop token, unless the client does without it."""
    if not controls.get("ignore_eos"):
        controls["stop_token_ids"] = (*controls.get("stop_token_ids", ()), EOS)
    return SamplingParams(**controls)


def make_engine(runner=None, *, overlap=True, clock=None, num_blocks=64, max_model_len=1000, **limits):
    runner = runner or ScriptedModelRunner(echo_script(3, EOS), num_blocks, 4)
    scheduler = Scheduler(
        SchedulerConfig(**limits), CacheManager(BlockManager(runner.num_blocks, runner.block_size)), max_model_len
    )
    sink = RecordingSink()
    engine = Engine(scheduler, runner, sink, overlap, clock or Clock())
    return engine, sink


def run(engine: Engine, max_steps: int = 10_000) -> None:
    for _ in range(max_steps):
        if not engine.has_work:
            return
        engine.step()
    raise AssertionError("the engine does not come to rest")

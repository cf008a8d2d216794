"""Constrained sequences as the service has them: the next mask is made from tokens published, and that takes time."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.cuda_model_runner import CudaModelRunner
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import RequestId
from tests.engine.cuda_driver import BLOCK_SIZE
from tests.engine.engines import EOS, sampling
from tests.engine.hash_model import ListSink

PERIOD = 7  # positions; each begins with tokens that are forced, a number of its own


class TextWorker(ListSink):
    """Hears of tokens, and has the masks of one position a row: what comes next depends on every token before it.

    lateness: how often a mask is asked for in vain, anew for each
    """

    def __init__(self, vocab_size: int, lateness: Callable[[], int] = lambda: 0) -> None:
        super().__init__()
        self._vocab_size, self._lateness = vocab_size, lateness
        self._tokens: dict[int, list[int]] = {}          # of a row's sequence, as far as published
        self._asks_left: dict[tuple[int, int], int] = {}

    def begin(self, mask_row: int, prompt: list[int]) -> None:
        self._tokens[mask_row] = list(prompt)

    def publish(self, events: StepEvents) -> None:
        super().publish(events)
        for sequence, token_id in zip(events.sequences, events.token_ids):
            if sequence.mask_row in self._tokens:
                self._tokens[sequence.mask_row].append(token_id)
        for sequence in events.finished:
            self._tokens.pop(sequence.mask_row, None)

    def ready(self, mask_row: int, position: int) -> np.ndarray | None:
        tokens = self._tokens.get(mask_row)
        if tokens is None or len(tokens) != position:
            return None
        asks_left = self._asks_left.setdefault((mask_row, position), self._lateness())
        if asks_left:
            self._asks_left[mask_row, position] = asks_left - 1
            return None
        forced = self.forced(mask_row, position)
        bits = np.zeros(-(-self._vocab_size // 32) * 32, np.uint8)
        bits[[forced[0]] if forced else self._allowed(tokens)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def forced(self, mask_row: int, position: int) -> list[int]:
        rng = random.Random(position // PERIOD * 1000 + mask_row)
        tokens = [rng.randrange(1, self._vocab_size) for _ in range(rng.randrange(PERIOD - 1))]
        return tokens[position % PERIOD :]

    def _allowed(self, tokens: list[int]) -> list[int]:
        rng = random.Random(str(tokens))
        return [*rng.sample(range(1, self._vocab_size), 6), *([EOS] if rng.random() < 0.1 else [])]


Wish = tuple[list[int], dict[str, object], bool]  # prompt, controls, whether masks hold it


def wishes(count: int, vocab_size: int, max_tokens: int, seed: int) -> list[Wish]:
    """Every other one held; greedy and drawn, with and without penalties."""
    rng = random.Random(seed)
    controls = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5}, {"temperature": 0.8, "repetition_penalty": 1.2}]
    return [
        (
            [rng.randrange(1, vocab_size) for _ in range(rng.randrange(1, 30))],
            controls[number // 2 % 3] | {"max_tokens": rng.randrange(2, max_tokens)},
            number % 2 == 0,
        )
        for number in range(count)
    ]


def answer_all(
    engine: Engine, worker: TextWorker, wanted: list[Wish], aborts: random.Random | None = None, first: int = 0
) -> dict[int, list[int]]:
    """Tokens by number, from `first` on, which is the request's and the mask row's; two turns lie between requests.

    aborts: ends one request in four on the way
    """
    doomed: dict[int, int] = {}
    turn = 0
    for number, (prompt, controls, is_held) in enumerate(wanted, first):
        if is_held:
            worker.begin(number, prompt)
        engine.submit(RequestId(number), 0, prompt, sampling(**controls), mask_rows=(number,) if is_held else ())
        if aborts is not None and aborts.random() < 0.25:
            doomed[number] = turn + aborts.randrange(12)
        for _ in range(2):
            turn = _turn(engine, doomed, turn)
    while engine.has_work:
        turn = _turn(engine, doomed, turn)
    engine.check_integrity()
    return {number: worker.tokens.get((number, 0), []) for number in range(first, first + len(wanted))}


def _turn(engine: Engine, doomed: dict[int, int], turn: int) -> int:
    for number, at in doomed.items():
        if at == turn:
            engine.abort(RequestId(number))
    engine.step()
    return turn + 1


def cuda_answers(
    runner: CudaModelRunner, worker: TextWorker, wanted: list[Wish], aborts: random.Random | None = None, first: int = 0
) -> dict[int, list[int]]:
    """What a CudaModelRunner of 8 slots says."""
    runner.set_mask_source(worker)
    cache = CacheManager(BlockManager(runner.num_blocks, BLOCK_SIZE), prompt_grid=runner.prompt_grid)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=8), cache, 256)
    scheduler.output_tokens.forced = worker
    return answer_all(Engine(scheduler, runner, worker), worker, wanted, aborts, first)

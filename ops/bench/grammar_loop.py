"""How long the engine's steps take with and without masks: 64 sequences of a scripted engine, none or 32 of them held.

    python -m ops.bench.grammar_loop [--step-us 10000]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from ipc.mask_table import MaskTable
from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, StepCost, cycle_script
from sparkinfer.engine.mask_source import NO_MASK_ROW
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams
from workers.gpu_masks import TableMasks

VOCABULARY = 248_320


class Consumer:
    """An engine's sink that does what the text workers do: after each token the next position's mask is ready."""

    def __init__(self, table: MaskTable) -> None:
        self._table = table

    def publish(self, events: StepEvents) -> None:
        for sequence in events.sequences:
            if sequence.mask_row != NO_MASK_ROW:
                self._table.mark_ready(sequence.mask_row, sequence.num_tokens)


def loop(step_us: int) -> None:
    """The engine's own loop, masks in a mask table, always in time."""
    table = MaskTable.create(64, VOCABULARY)
    for row in range(64):
        table.publish(row, 8, np.full(table.num_words, -1, np.int32))
    for held in (0, 32, 0, 32, 0, 32):
        runner = ScriptedModelRunner(cycle_script([5, 6, 7], 2000, 0), 64 * 128, 16, StepCost(step_us))
        runner.set_mask_source(TableMasks(table), VOCABULARY)
        scheduler = Scheduler(SchedulerConfig(max_num_seqs=64), CacheManager(BlockManager(64 * 128, 16)), 2048)
        scheduler.output_tokens.forced = TableMasks(table)
        engine = Engine(scheduler, runner, Consumer(table))
        for number in range(64):
            table.mark_ready(number, 8)
            rows = (number,) if number < held else ()
            engine.submit(RequestId(number), 0, [1] * 8, SamplingParams(max_tokens=600), mask_rows=rows)
        times = []
        while engine.has_work:
            started_at = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - started_at)
        steady = np.array(times[50:500]) * 1e3
        print(f"{held:2} of 64 held: {np.median(steady):.3f} ms a step, p99 {np.percentile(steady, 99):.3f} ms, "
              f"{engine.stats.num_late_masks} late rows")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-us", type=int, default=10_000)
    loop(parser.parse_args().step_us)

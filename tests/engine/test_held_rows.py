"""Held sequences run a step ahead of the host: late masks, ends, forced tokens and aborts meanwhile change no token."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine import mask_gate
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, cycle_script
from sparkinfer.engine.mask_gate import GatedRows, MaskGate
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import ScheduledSequence, SchedulerOutput
from sparkinfer.engine.sequence import SequenceStatus
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import RequestId
from tests.engine.cuda_driver import make_runner
from tests.engine.engines import EOS, sampling
from tests.engine.hash_model import VOCAB_SIZE, Rig
from tests.engine.held_rows import TextWorker, Wish, answer_all, cuda_answers, wishes
from tests.engine.plain_kernels import use_plain_kernels
from tests.engine.scheduling import make_sequence
from tests.model.tiny import tiny_gguf

WISHES = wishes(12, VOCAB_SIZE, 40, seed=3)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a mask: it is late as often as it is asked for in vain."""
    for name in ("GRACE_S", "LATE_WAIT_S", "POLL_S"):
        monkeypatch.setattr(mask_gate, name, 0.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mask that comes is waited for."""
    monkeypatch.setattr(mask_gate, "GRACE_S", 60.0)


def answers(
    worker: TextWorker, wanted: list[Wish], aborts: random.Random | None = None, first: int = 0, jumps: bool = True,
    **rig: object,
) -> tuple[dict[int, list[int]], Rig]:
    with Rig(**rig) as made:
        made.sink = made.engine._sink = worker
        made.runner.set_mask_source(worker)
        if jumps:
            made.engine.scheduler.output_tokens.forced = worker
        return answer_all(made.engine, worker, wanted, aborts, first), made


@pytest.fixture(scope="module")
def expected() -> dict[int, list[int]]:
    """Each alone, never ahead, its tokens one by one."""
    found: dict[int, list[int]] = {}
    for number, wish in enumerate(WISHES):
        found |= answers(TextWorker(VOCAB_SIZE), [wish], first=number, jumps=False, overlap=False)[0]
    assert sum(map(len, found.values())) > 100
    return found


def gate_rows(num_tokens: list[int], asks: int, computed_after: int) -> tuple[GatedRows, int]:
    """What becomes of rows whose masks come after `asks` looks, and looks at the device, which is ready after some."""
    worker, gate, looks = TextWorker(VOCAB_SIZE, lambda: asks), MaskGate(VOCAB_SIZE), 0

    def is_computed() -> bool:
        nonlocal looks
        looks += 1
        return looks > computed_after

    gate.source, rows = worker, []
    for number, count in enumerate(num_tokens):
        worker.begin(number, [1, 2, 3])
        sequence = make_sequence(number, [1, 2, 3])
        rows.append(ScheduledSequence(sequence, number, 3 - count, count, None, 0, (), True, None, number))
    rows[-1].sequence.status = SequenceStatus.FINISHED
    worker.publish(StepEvents(finished=[rows[-1].sequence]))
    return gate.gate(torch.zeros(len(rows), VOCAB_SIZE), SchedulerOutput(rows), is_computed), looks


def test_masks_are_waited_for_while_the_device_computes(impatient: None) -> None:
    gated, looks = gate_rows([1, 1, 1], asks=20, computed_after=30)
    assert (gated.late, gated.stale, looks) == ([], [2], 20)
    gated, looks = gate_rows([1, 1, 1], asks=20, computed_after=10)
    assert (gated.late, gated.stale, looks) == ([0, 1], [2], 11)


def test_what_was_late_before_is_not_waited_for(impatient: None) -> None:
    gated, looks = gate_rows([0, 1], asks=1, computed_after=30)
    assert (gated.late, gated.stale, looks) == ([0], [1], 0)


def test_a_slow_grammar_is_seldom_waited_for(impatient: None) -> None:
    """Its masks come a step late, 40 times on end: the free row beside it hardly notices. Then they come in time."""
    gate, waits = MaskGate(VOCAB_SIZE), [0]
    held, free = make_sequence(0, [1]), make_sequence(1, [1])
    masks = {}
    gate.source = SimpleNamespace(ready=lambda row, position: masks.get(position))
    mask = np.full(1, -1, np.int32)

    def run(position: int) -> GatedRows:
        rows = [ScheduledSequence(s, s.request_id, position - 1, 1, None, 0, (), True) for s in (held, free)]
        rows[0].mask_row = 0
        output = gate.settle(SchedulerOutput(rows, 2))
        logits = gate.with_late(torch.zeros(sum(row.num_tokens for row in output.rows), VOCAB_SIZE), output)
        return gate.gate(logits, output, lambda: waits.append(position) is None)

    for position in range(2, 42):
        assert run(position).late == [0]
        masks[position] = mask
        assert run(position + 1).late == []
    assert len(set(waits[1:])) <= 6
    masks |= dict.fromkeys(range(42, 50), mask)
    assert not any(run(position).late for position in range(42, 50))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("num_blocks", [100, 22])
def test_company_changes_nothing(
    seed: int, num_blocks: int, expected: dict[int, list[int]], impatient: None
) -> None:
    """Masks late up to seed - 1 times, requests aborted, 22 blocks for preemption."""
    rng = random.Random(seed)
    worker = TextWorker(VOCAB_SIZE, lambda: rng.randrange(seed or 1))
    found, rig = answers(
        worker, WISHES, random.Random(seed), num_blocks=num_blocks, max_num_seqs=6, jumps=seed % 3 > 0,
        prefill_chunk_tokens=9, max_num_batched_tokens=24,
    )
    assert rig.engine.stats.num_late_masks > 20 or seed < 2
    for number, tokens in expected.items():
        is_whole = worker.finished[number, 0].finish_reason.name != "ABORT"
        assert found[number] == (tokens if is_whole else tokens[: len(found[number])])
    assert any(sequence.finish_reason.name != "ABORT" for sequence in worker.finished.values())


def test_patience_changes_nothing(expected: dict[int, list[int]]) -> None:
    rng = random.Random(1)
    worker = TextWorker(VOCAB_SIZE, lambda: rng.choice((0, 0, 1, 3, 50)))
    assert answers(worker, WISHES)[0] == expected


@pytest.mark.parametrize("overlap", [True, False])
def test_a_token_every_step(overlap: bool, patient: None) -> None:
    """As many steps as tokens, for those with masks and those without, in each other's company and alone."""
    wanted: list[Wish] = [([3, 1], {"max_tokens": 30, "ignore_eos": True}, is_held) for is_held in (True, False)]
    for company in (wanted, wanted[:1]):
        _, rig = answers(TextWorker(VOCAB_SIZE), company, jumps=False, overlap=overlap)
        assert rig.engine.stats.num_steps <= 30 + 2 * len(company)
        assert rig.engine.stats.num_late_masks == 0


def test_a_dead_grammar_costs_the_others_no_step(impatient: None) -> None:
    worker = TextWorker(VOCAB_SIZE)
    with Rig() as rig:
        rig.engine._sink = worker
        rig.runner.set_mask_source(worker)  # and no mask ever comes for row 0, which nobody has begun
        for number, mask_rows in enumerate(((0,), ())):
            controls = sampling(max_tokens=20, ignore_eos=True)
            rig.engine.submit(RequestId(number), 0, [7, 8], controls, mask_rows=mask_rows)
        while (1, 0) not in worker.finished:
            rig.engine.step()
        assert rig.engine.stats.num_steps <= 22
        assert (0, 0) not in worker.tokens
        rig.engine.abort(RequestId(0))
        while rig.engine.has_work:
            rig.engine.step()
        rig.engine.check_integrity()


@pytest.mark.parametrize("most_late", [0, 3])
def test_scripts_too(most_late: int) -> None:
    def engine(worker: TextWorker, *, overlap: bool, jumps: bool) -> Engine:
        runner = ScriptedModelRunner(cycle_script([5, 6, 7, 8, 9], 25, EOS), 64, 4)
        runner.set_mask_source(worker, VOCAB_SIZE)
        scheduler = Scheduler(SchedulerConfig(max_num_seqs=6), CacheManager(BlockManager(64, 4)), 1000)
        scheduler.output_tokens.forced = worker if jumps else None
        return Engine(scheduler, runner, worker, overlap)

    rng = random.Random(7)
    alone: dict[int, list[int]] = {}
    for number, wish in enumerate(WISHES):
        worker = TextWorker(VOCAB_SIZE)
        alone |= answer_all(engine(worker, overlap=False, jumps=False), worker, [wish], first=number)
    worker = TextWorker(VOCAB_SIZE, lambda: rng.randrange(most_late + 1))
    assert answer_all(engine(worker, overlap=True, jumps=True), worker, WISHES) == alone


@pytest.mark.parametrize("architecture", ["qwen35", "qwen3moe"])
def test_the_cuda_runner_too(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    use_plain_kernels(monkeypatch)
    path = tiny_gguf(architecture, tmp_path)
    runner = make_runner(path, torch.device("cpu"), 8, num_blocks=64, is_deterministic=True)
    vocab_size, wanted, rng = 1024, wishes(6, 1024, 12, seed=4), random.Random(2)
    alone: dict[int, list[int]] = {}
    for number, wish in enumerate(wanted):
        alone |= cuda_answers(runner, TextWorker(vocab_size), [wish], first=number)
    worker = TextWorker(vocab_size, lambda: rng.randrange(4))
    assert cuda_answers(runner, worker, wanted) == alone
    runner.close()

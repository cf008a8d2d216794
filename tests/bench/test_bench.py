"""`python -m sparkinfer.bench` on a tiny model: what it prints, what it refuses, and what it makes a runner do."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import torch

from sparkinfer.bench import cuda_loading
from sparkinfer.bench.__main__ import main
from sparkinfer.bench.bandwidth import copy_bandwidth
from sparkinfer.bench.case import Case, Chunk, all_cases, prefill_steps
from sparkinfer.bench.loading import BLOCK_SIZE, Room
from sparkinfer.bench.stopwatch import Stopwatch
from sparkinfer.bench.traffic import Traffic
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.scheduler_output import ScheduledSequence, SchedulerOutput, StepResult
from sparkinfer.engine.state_pool import bytes_per_slot
from tests.engine.plain_kernels import use_plain_kernels
from tests.model.tiny import tiny_gguf

COMMON = ["-p", "20", "-n", "3", "-d", "0,17", "-b", "1,2", "-r", "2", "--device", "cpu", "-t", "1"]


@pytest.fixture(autouse=True)
def _small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkinfer.bench.bandwidth.CPU_BYTES", 1 << 20)


def test_json_has_every_combination(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", str(tiny_gguf("qwen35", tmp_path)), *COMMON, "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [result["test"] for result in report["results"]] == [
        "pp20", "tg3", "pp20 @ d17", "tg3 @ d17", "pp20 x2", "tg3 x2", "pp20 x2 @ d17", "tg3 x2 @ d17",
    ]
    for result in report["results"]:
        assert len(result["seconds"]) == 2
        tokens = result["num_tokens"] * result["num_seqs"]
        rates = [tokens / seconds for seconds in result["seconds"]]
        assert result["tokens_per_second"] == pytest.approx(sum(rates) / 2)
        assert result["tokens_per_second_sd"] == pytest.approx(abs(rates[0] - rates[1]) / 2**0.5)
        bandwidth = result["bytes"] / sum(result["seconds"]) * 2
        assert result["share_of_copy_bandwidth"] == pytest.approx(bandwidth / report["setting"]["copy_bandwidth"])


def test_table_and_csv_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tiny_gguf("qwen3moe", tmp_path))
    command = ["-m", path, "-p", "0", "-n", "2", "-r", "1", "-t", "1", "--device", "cpu"]
    assert main([*command, "-o", "table"]) == 0
    table = capsys.readouterr().out
    assert "qwen3moe" in table
    assert [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| tg")] == ["| tg2"]
    assert main([*command, "-o", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["test"], row["kind"], row["steps"], row["device"]) == ("tg2", "decode", "2", "CPU")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "no/such.gguf"], "no/such.gguf: no such file or folder"),
        (["--device", "tpu"], "--device 'tpu': allowed: auto, cpu, cuda, cuda:N"),
        (["-d", "1000000", "-p", "400"], "the model's context is"),
        (["-b", "4096", "-d", "600"], "GiB of keys and values"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparkinfer.bench.loading.free_memory", lambda device: 1 << 28)
    path = str(tiny_gguf("qwen2", tmp_path))
    assert main(["-m", path, "--device", "cpu", "-p", "8", "-n", "0", *arguments]) == 1
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1]
    assert captured.out == ""


@pytest.mark.parametrize("wrong", [["-p", "x"], ["-b", "0"], ["-n", "-1"], ["-r", "0"], ["-p", "0", "-n", "0"]])
def test_wrong_numbers_are_usage_errors(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["-m", "m.gguf", *wrong])
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


class _Handle:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def is_done(self, timeout_s: float) -> bool:
        return True

    def wait(self) -> StepResult:
        return self._result


class _Recorder:
    """A ModelRunner that notes its rows."""

    num_blocks = 64
    block_size = BLOCK_SIZE

    def __init__(self) -> None:
        self.steps: list[list[ScheduledSequence]] = []

    def launch(self, output: SchedulerOutput) -> _Handle:
        self.steps.append(output.scheduled)
        assert output.num_tokens == sum(row.num_tokens for row in output.scheduled)
        return _Handle(StepResult([0] * len(output.sampling_rows)))

    def copy(self, output: SchedulerOutput) -> None: ...

    def close(self) -> None: ...


def test_decode_runs_behind_its_depth() -> None:
    runner = _Recorder()
    case = Case(is_prefill=False, num_tokens=5, depth=20, num_seqs=2)
    assert len(Stopwatch(runner, 100, 40, max_step_tokens=16).seconds(case, 2)) == 2
    first, decode = runner.steps[:3], runner.steps[3:]
    assert [[(r.slot, r.start, r.num_tokens) for r in step] for step in first] == [
        [(0, 0, 16)], [(0, 16, 4), (1, 0, 12)], [(1, 12, 8)],
    ]
    assert [r.samples for step in first for r in step] == [False, True, False, True]
    assert [r.new_blocks for r in (first[0][0], first[1][1])] == [(0, 1, 2), (3, 4, 5)]
    assert [[(r.slot, r.start, r.token_ids) for r in step] for step in decode] == [
        [(0, 20 + i, None), (1, 20 + i, None)] for i in [*range(4), *range(5), *range(5)]
    ]


def test_prompts_sample_once_at_their_end() -> None:
    runner = _Recorder()
    Stopwatch(runner, 100, 40, max_step_tokens=8).seconds(Case(True, 20, 0, 1), 1)
    assert [(step[0].start, step[0].samples) for step in runner.steps[-3:]] == [(0, False), (8, False), (16, True)]
    assert all(0 <= token < 100 for step in runner.steps for token in step[0].token_ids or [])


def test_a_runner_on_kernels_takes_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_plain_kernels(monkeypatch)
    gguf = GGUFFile.open(tiny_gguf("qwen35", tmp_path))
    hparams = HParams.from_gguf(gguf)
    runner = cuda_loading.load(gguf, hparams, torch.device("cpu"), Room(2, 40, torch.bfloat16))
    stopwatch = Stopwatch(runner, hparams.vocab_size, 40, 64)
    for case in all_cases([20], [2], [0], [2]):
        assert len(stopwatch.seconds(case, 1)) == 1
    runner.close()


def test_bytes_of_a_step(tmp_path: Path) -> None:
    """By hand, from the file's own sizes."""
    gguf = GGUFFile.open(tiny_gguf("qwen3moe", tmp_path))
    hparams = HParams.from_gguf(gguf)
    traffic = Traffic(gguf, hparams, torch.bfloat16, weights_are_f32=False)
    sizes = {name: info.num_bytes for name, info in gguf.tensors.items()}
    experts = sum(size for name, size in sizes.items() if "_exps." in name)
    embedding = sizes["token_embd.weight"]
    others = sum(sizes.values()) - experts - (0 if hparams.has_tied_embeddings else embedding)
    used = hparams.num_experts_used / hparams.num_experts
    cache = 2 * 2 * hparams.num_layers * hparams.num_kv_heads * hparams.head_dim  # keys and values of a token
    row = embedding // hparams.vocab_size
    one = traffic.step_bytes([Chunk(0, 9, 1)])
    assert one == pytest.approx(others + used * experts + row + cache * (10 + 1))
    two = traffic.step_bytes([Chunk(0, 9, 1), Chunk(1, 4, 1)])
    assert two == pytest.approx(others + (1 - (1 - used) ** 2) * experts + 2 * row + cache * (11 + 6))


def test_states_pass_as_often_as_is_said(tmp_path: Path) -> None:
    """Of sequences that add one token; chunks read and write them."""
    gguf = GGUFFile.open(tiny_gguf("qwen35", tmp_path))
    hparams = HParams.from_gguf(gguf)
    often, seldom = (Traffic(gguf, hparams, torch.bfloat16, False, *passes) for passes in ((), (1.25,)))
    step = [Chunk(0, 9, 1), Chunk(1, 4, 3)]
    assert often.step_bytes(step) - seldom.step_bytes(step) == 0.75 * bytes_per_slot(hparams)


def test_sliding_layers_see_their_window(tmp_path: Path) -> None:
    gguf = GGUFFile.open(tiny_gguf("gemma3", tmp_path))
    hparams = HParams.from_gguf(gguf)
    traffic = Traffic(gguf, hparams, torch.float32, weights_are_f32=True)
    window, layers = hparams.sliding_window, hparams.layer_types
    rows = layers.count("attention")
    growth = traffic.step_bytes([Chunk(0, window + 50, 1)]) - traffic.step_bytes([Chunk(0, window + 40, 1)])
    assert growth == 10 * rows * 2 * 4 * hparams.num_kv_heads * hparams.head_dim


def test_steps_are_filled() -> None:
    steps = prefill_steps(2, 3, 10, 8)
    assert steps == [[Chunk(0, 3, 8)], [Chunk(0, 11, 2), Chunk(1, 3, 6)], [Chunk(1, 9, 4)]]


def test_copies_have_a_speed() -> None:
    assert copy_bandwidth(torch.device("cpu"), 1 << 16) > 1e6

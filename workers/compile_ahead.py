"""Starts the process that compiles CPU kernels while the scheduler's imports and loads. Knows no kernel."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import Config, cache_dir

ROOT = Path(__file__).resolve().parent.parent
MODULE = "workers.kernel_builder"


def start(config: Config, gguf: GGUFFile, hparams: HParams) -> subprocess.Popen[bytes] | None:
    """The process, which ends by itself; None where the model will not run on a CPU, as far as can be told so early."""
    engine = config.engine
    is_for_cpu = engine.device == "cpu" or (engine.device == "auto" and not glob.glob("/dev/nvidia[0-9]*"))
    if engine.runner == "scripted" or not is_for_cpu or not importlib.util.find_spec("llvmlite"):
        return None
    wishes = {
        "supervisor_pid": os.getpid(),
        "folder": str(cache_dir(config.model) / "kernels"),
        "pool": {"auto": "f16"}.get(engine.kv_dtype, engine.kv_dtype),
        "types": sorted({info.ggml_type.name for info in gguf.tensors.values() if len(info.shape) > 1}),
        "embedding": gguf.info("token_embd.weight").ggml_type.name if hparams.has_tied_embeddings else None,
        "has_state": bool(hparams.ssm_state_size),
        "has_experts": bool(hparams.num_experts),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, json.dumps(wishes)], cwd=ROOT, stdin=subprocess.DEVNULL, process_group=0
    )
    process.returncode = 0  # the supervisor collects every child itself
    return process

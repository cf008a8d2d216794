"""Prompts and decode of a model on this CPU, and as on CPUs with fewer instruction sets: what is missing is masked.

    python ops/bench/cpu_features.py [--model REFERENCE] [--runs 3]

The figures are this machine's at what those CPUs could execute; their own clocks and caches differ.
"""

from __future__ import annotations

import argparse
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kernels.cpu import machine
from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.config import DEFAULT_MODEL, ModelConfig, cache_dir

MASKED = {"host": (), "avxvnni": ("avx512",), "avx2": ("avx512", "avxvnni")}  # beginnings of features' names


def run_masked(title: str, arguments: list[str]) -> None:
    """python -m sparkinfer.bench in this process."""
    if MASKED[title]:
        machine.restrict("haswell", {name for name in machine.cpu_features() if not name.startswith(MASKED[title])})
    sys.argv = ["sparkinfer.bench", *arguments]
    runpy.run_module("sparkinfer.bench", run_name="__main__")


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in MASKED:
        run_masked(sys.argv[1], sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    model = resolve(arguments.model, cache_dir(ModelConfig()))
    for title in MASKED:
        print(f"--- {title}", flush=True)
        command = [sys.executable, __file__, title, "-m", str(model), "-p", "512", "-n", "128", "--device", "cpu",
                   "-r", str(arguments.runs)]
        subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()

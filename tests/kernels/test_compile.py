"""Every kernel compiles for each generation of card we name, without such a card."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = ["sm_80", "sm_89", "sm_90", "sm_120", "gfx942", "gfx1100"]
PROGRAMS = {"offline_compile": 12, "compile_others": 6}  # in this folder: of decode steps, of all else; fewest kernels


@pytest.mark.timeout(400)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_kernels_compile(program: str, target: str, tmp_path: Path) -> None:
    without_lines = {"TRITON_DISABLE_LINE_INFO": "1"}  # where instructions come from takes ptxas half of its time
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= without_lines | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", f"tests.kernels.{program}", target]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    name, count = done.stdout.split()
    assert name == target
    assert int(count) >= PROGRAMS[program]

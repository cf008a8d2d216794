"""The import rules of docs/architecture.md, read off the source: imports in functions and under TYPE_CHECKING count."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("sparkinfer", "kernels", "ipc", "workers", "supervisor")
TORCH_FREE_ENGINE = (
    "sequence", "block_manager", "scheduler", "scheduler_output", "step_events", "waiting_queue", "memory_plan",
    "prefix_cache", "prefix_node", "snapshot_pool", "cache_manager", "shared_prefill", "checkpoint_plan", "cache_plan",
    "disk_tier", "prefix_disk", "cache_report",
    "admission_control", "block_reservations", "deadlines", "fair_share", "open_requests", "placement", "policy",
    "step_builder", "swap_space",
)
TORCH_FREE_PROCESSES = ("supervisor", "workers.http_frontend", "workers.text")


def sources() -> list[Path]:
    packages = [path for name in OURS[:-1] for path in sorted((ROOT / name).rglob("*.py"))]
    return [ROOT / "supervisor.py", *packages]


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def under(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def violations(folder: str, *forbidden: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources()
        if path.is_relative_to(ROOT / folder)
        for module in sorted(imports(path))
        if under(module, *forbidden)
    ]


def test_the_rules_see_the_source() -> None:
    assert len(sources()) > 50
    assert "ipc.channel" in imports(ROOT / "workers/process.py")


def test_library_knows_no_processes() -> None:
    assert violations("sparkinfer", "ipc", "workers", "supervisor") == []


def test_kernels_import_nothing_of_ours_but_kernels() -> None:
    assert violations("kernels", "sparkinfer", "ipc", "workers", "supervisor") == []


def test_ipc_imports_only_plain_records_of_the_library() -> None:
    allowed = {"sparkinfer.request", "sparkinfer.sampling_params", "sparkinfer.errors"}
    found = {line.split(" imports ")[1] for line in violations("ipc", "sparkinfer")}
    assert found <= allowed
    assert violations("ipc", "workers", "kernels", "supervisor") == []


def test_workers_share_only_the_skeleton() -> None:
    """Worker roles (files with a __main__ block) never import each other."""
    roles = {"workers.http_frontend", "workers.text", "workers.gpu_scheduler"}
    assert [line for line in violations("workers", *roles) if "imports" in line] == []


def test_supervisor_names_workers_as_strings() -> None:
    assert not any(under(module, *("workers.http_frontend", "workers.text", "workers.gpu_scheduler"))
                   for module in imports(ROOT / "supervisor.py"))


@pytest.mark.parametrize("folder", ["sparkinfer/api", "sparkinfer/text", "sparkinfer/checkpoint", "ipc"])
def test_folder_never_imports_torch(folder: str) -> None:
    assert violations(folder, "torch", "triton") == []


@pytest.mark.parametrize("name", TORCH_FREE_ENGINE)
def test_deciding_code_never_imports_torch(name: str) -> None:
    path = ROOT / "sparkinfer" / "engine" / f"{name}.py"
    assert not any(under(module, "torch") for module in imports(path))


def test_only_channel_imports_zmq() -> None:
    users = [str(path.relative_to(ROOT)) for path in sources() if any(under(m, "zmq") for m in imports(path))]
    assert users == ["ipc/channel.py"]


def test_only_config_reads_the_environment() -> None:
    readers = [
        str(path.relative_to(ROOT))
        for path in sources()
        if any(f"os.{name}" in path.read_text() for name in ("environ", "getenv", "putenv"))
    ]
    # handing an environment to a child process is not reading a setting; TRITON_INTERPRET is Triton's, not ours
    assert set(readers) == {
        "sparkinfer/config.py", "supervisor.py", "sparkinfer/checkpoint/pypi_model.py", "kernels/launch.py",
        "workers/builder.py",
    }


@pytest.mark.parametrize("module", TORCH_FREE_PROCESSES)
def test_process_does_not_load_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_no_import_cycles() -> None:
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in sources()
    }
    graph = {name: {m for m in imports(path) if m in modules} for name, path in modules.items()}
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert state.get(name) != 1, " -> ".join((*trail, name))
        if name in state:
            return
        state[name] = 1
        for target in sorted(graph[name]):
            visit(target, (*trail, name))
        state[name] = 2

    for name in sorted(graph):
        visit(name, ())

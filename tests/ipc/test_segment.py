from __future__ import annotations

import os

import pytest

from ipc.segment import Segment


def test_both_mappings_see_the_same_bytes():
    segment = Segment.create("notes", 4096)
    other = Segment.attach(os.dup(segment.fd), 4096)
    assert segment.buffer[:] == bytes(4096)
    segment.buffer[100:105] = b"hello"
    assert other.buffer[100:105] == b"hello"
    assert (other.name, other.size) == ("notes", 4096)
    segment.close()
    assert other.buffer[100:105] == b"hello"
    other.close()


def test_nobody_can_resize_it():
    segment = Segment.create("sealed", 8192)
    for size in (0, 4096, 16384):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fd, size)
    assert os.fstat(segment.fd).st_size == 8192
    segment.close()


def test_only_pass_fds_hands_the_descriptor_on(spawn):
    code = "import os, sys; print(os.path.exists(f'/proc/self/fd/{sys.argv[1]}'))"
    segment = Segment.create("private", 64)
    assert spawn(code, segment.fd).stdout.read() == b"False\n"
    assert spawn(code, segment.fd, fds=(segment.fd,)).stdout.read() == b"True\n"
    segment.close()


def test_attached_descriptor_is_not_inherited_further():
    segment = Segment.create("private", 64)
    fd = os.dup(segment.fd)
    os.set_inheritable(fd, True)
    other = Segment.attach(fd, 64)
    assert not os.get_inheritable(fd)
    other.close()
    segment.close()


def test_child_that_attaches_leaves_the_segment_alive(spawn):
    segment = Segment.create("shared", 64)
    code = (
        "import sys; from ipc.segment import Segment\n"
        "segment = Segment.attach(int(sys.argv[1]), 64); segment.buffer[0:2] = b'ok'"
    )
    assert spawn(code, segment.fd, fds=(segment.fd,)).wait() == 0
    assert segment.buffer[:3] == b"ok\0"
    segment.close()


@pytest.mark.parametrize("size", [0, -1])
def test_size_must_be_positive(size):
    with pytest.raises(ValueError, match=r"'empty'.*positive"):
        Segment.create("empty", size)


def test_more_than_the_machine_has_is_refused_at_creation():
    with pytest.raises(MemoryError, match=r"'huge' of \d+ bytes: \d+ are available"):
        Segment.create("huge", 1 << 50)


def test_refused_allocation_names_the_segment_and_leaks_nothing(spawn):
    code = (
        "import os, resource; from ipc.segment import Segment\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "before = os.listdir('/proc/self/fd')\n"
        "try: Segment.create('limited', 8192)\n"
        "except MemoryError as error: print(error, os.listdir('/proc/self/fd') == before)"
    )
    output = spawn(code).stdout.read().decode()
    assert "shared segment 'limited' of 8192 bytes" in output
    assert output.endswith("True\n")


def test_attach_refuses_another_size():
    segment = Segment.create("sized", 4096)
    with pytest.raises(ValueError, match=r"'sized' .* has 4096 bytes, expected 64"):
        Segment.attach(segment.fd, 64)
    segment.close()


def test_attach_refuses_what_could_shrink():
    fd = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 64)
    with pytest.raises(ValueError, match=r"'loose' .* not sealed"):
        Segment.attach(fd, 64)
    os.close(fd)


def test_attach_refuses_a_plain_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(64))
    with open(path, "r+b") as file, pytest.raises(ValueError, match=r"not a shared segment|not sealed"):
        Segment.attach(file.fileno(), 64)


def test_close_waits_for_views_and_may_be_repeated():
    segment = Segment.create("viewed", 64)
    with memoryview(segment.buffer), pytest.raises(BufferError):
        segment.close()
    segment.close()
    segment.close()

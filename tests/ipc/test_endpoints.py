from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ipc.endpoints import MAX_SOCKET_PATH_BYTES, inbox, socket_path


def test_generations_have_paths_of_their_own():
    assert inbox("/run/sparkinfer", "text-0", 1) == "ipc:///run/sparkinfer/text-0.1.sock"
    assert inbox(Path("/run/sparkinfer"), "text-0", 2) == "ipc:///run/sparkinfer/text-0.2.sock"


def test_longest_allowed_path_is_the_kernels(tmp_path):
    name = socket_path(tmp_path, "gpu-0", 1).name
    room = MAX_SOCKET_PATH_BYTES - len(str(tmp_path)) - len(name) - 2
    run_dir = tmp_path / ("x" * room)
    run_dir.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path(run_dir, "gpu-0", 1)))
    longer = tmp_path / ("x" * (room + 1))
    with pytest.raises(ValueError, match=r"run directory '.*' is too long: .* takes 108 bytes, at most 107"):
        inbox(longer, "gpu-0", 1)


def test_length_counts_bytes_not_characters():
    assert socket_path("/" + "é" * 40, "gpu-0", 1)
    with pytest.raises(ValueError, match="takes 114 bytes"):
        socket_path("/" + "é" * 50, "gpu-0", 1)


@pytest.mark.parametrize(("name", "generation"), [("", 1), ("../gpu", 1), ("GPU", 1), ("gpu 0", 1), ("gpu-0", -1)])
def test_odd_names_are_refused(name, generation):
    with pytest.raises(ValueError, match="worker"):
        inbox("/run", name, generation)

"""The doctor finds nothing wrong with the whole server and the embedded model."""

from __future__ import annotations

import pytest

from sparkinfer.doctor.__main__ import CLIENTS, main
from tests.system.harness import Server


@pytest.mark.parametrize("client", CLIENTS)
def test_doctor(server: Server, capsys: pytest.CaptureFixture[str], client: str) -> None:
    code = main([server.url, "--as", client])
    assert code == 0, capsys.readouterr().out

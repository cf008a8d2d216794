"""The application on a socket, shared by the tests of this folder; each test starts with the default script."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.api.app_server import AppServer, echo


@pytest.fixture(scope="session")
def shared_app() -> Iterator[AppServer]:
    with AppServer() as running:
        yield running


@pytest.fixture
def app(shared_app: AppServer) -> Iterator[AppServer]:
    yield shared_app
    pool, service = shared_app.pool, shared_app.service
    pool.script, pool.refusal, service.is_ready = echo, None, True
    shared_app.generations.is_draining = False
    deadline = time.monotonic() + 10
    while len(pool.router) and time.monotonic() < deadline:  # of clients that left a moment ago
        threading.Event().wait(0.01)
    shared_app.call(lambda: None)
    while not pool.aborts.empty():
        pool.aborts.get_nowait()


@pytest.fixture
def http(app: AppServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=app.url, timeout=20) as client:
        yield client

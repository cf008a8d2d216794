"""What is kept of responses: bounded, owned, and there again after a restart."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from sparkinfer.api.responses.store import ResponseStore, StoredResponse
from sparkinfer.errors import ConfigError, RequestError


def stored(name: str, size: int = 0) -> StoredResponse:
    return StoredResponse({"id": name, "output": [{"type": "message"}]}, [{"role": "user", "content": "x" * size}])


def names(store: ResponseStore, *asked: str, owner: int = 0) -> list[str]:
    found = []
    for name in asked:
        with contextlib.suppress(RequestError):
            found.append(store.get(owner, name).response["id"])
    return found


def test_it_survives_a_restart_and_is_shared(tmp_path: Path) -> None:
    path = str(tmp_path / "r.sqlite")
    first, second = (ResponseStore(path, 10, 1 << 20) for _ in range(2))
    first.put(0, stored("a"))
    assert second.get(0, "a") == stored("a")
    first.close()
    second.close()
    again = ResponseStore(path, 10, 1 << 20)
    assert again.history(0, "a") == [{"role": "user", "content": ""}, {"type": "message"}]
    again.close()


def test_the_oldest_go_first() -> None:
    store = ResponseStore(":memory:", 2, 1 << 20)
    for name in ("a", "b", "c"):
        store.put(0, stored(name))
    assert names(store, "a", "b", "c") == ["b", "c"]


def test_bytes_are_bounded_too() -> None:
    store = ResponseStore(":memory:", 100, 1000)
    for name in ("a", "b", "c"):
        store.put(0, stored(name, 400))
    assert names(store, "a", "b", "c") == ["b", "c"]
    store.put(0, stored("huge", 2000))
    assert names(store, "b", "c", "huge") == []


def test_nothing_is_kept_where_nothing_may_be() -> None:
    store = ResponseStore(":memory:", 0, 1 << 20)
    store.put(0, stored("a"))
    assert names(store, "a") == []


def test_owners_see_their_own() -> None:
    store = ResponseStore(":memory:", 10, 1 << 20)
    store.put(1, stored("a"))
    assert (names(store, "a", owner=1), names(store, "a", owner=2)) == (["a"], [])
    with pytest.raises(RequestError):
        store.delete(2, "a")
    store.delete(1, "a")
    assert names(store, "a", owner=1) == []


def test_a_history_that_is_gone() -> None:
    store = ResponseStore(":memory:", 10, 1 << 20)
    with pytest.raises(RequestError) as raised:
        store.history(0, "a")
    assert (raised.value.status, raised.value.code) == (400, "previous_response_not_found")


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    path.write_text("not a database, and long enough to be told from an empty one" * 100)
    with pytest.raises(ConfigError, match="responses_directory"):
        ResponseStore(str(path), 10, 1 << 20)

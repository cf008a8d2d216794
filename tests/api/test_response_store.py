"""What is kept of responses: bounded, owned, and there again after a restart."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from sparkinfer.api.responses.store import MAX_RESPONSE_BYTES, ResponseStore, StoredResponse
from sparkinfer.config import ServerConfig
from sparkinfer.doctor.sse_events import parse_events
from sparkinfer.errors import ConfigError, RequestError
from tests.api.app_server import AppServer


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


def test_only_its_owner_may_read_the_files(tmp_path: Path) -> None:
    store = ResponseStore(str(tmp_path / "r.sqlite"), 10, 1 << 20)
    store.put(0, stored("a"))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    store.close()


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
    assert not store.put(1, stored("huge", 2000))  # and costs the others nothing
    assert names(store, "b", "c", "huge") == ["b", "c"]


def test_nothing_is_kept_where_nothing_may_be() -> None:
    store = ResponseStore(":memory:", 0, 1 << 20)
    assert not store.put(0, stored("a"))
    assert names(store, "a") == []


def test_a_response_with_all_its_turns_is_bounded() -> None:
    store = ResponseStore(":memory:", 10, 1 << 30)
    assert not store.put(0, stored("a", MAX_RESPONSE_BYTES))
    assert store.put(0, stored("b", MAX_RESPONSE_BYTES // 2))


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


def test_a_place_where_no_database_can_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="responses_directory"):
        ResponseStore(str(tmp_path / "missing" / "r.sqlite"), 10, 1 << 20)
    (tmp_path / "r.sqlite").mkdir()
    with pytest.raises(ConfigError, match="responses_directory"):
        ResponseStore(str(tmp_path / "r.sqlite"), 10, 1 << 20)


@pytest.mark.parametrize("damage", ["no database", "torn", "cut off"])
def test_a_damaged_file_is_moved_aside_when_it_is_opened(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.sqlite"
    store = ResponseStore(str(path), 10, 1 << 20)
    assert store.put(0, stored("a", 50_000))
    store.close()
    data = path.read_bytes()
    damaged = {"no database": b"words" * 9000, "torn": data[:50] + b"\xff" * 4046 + data[4096:], "cut off": data[:1000]}
    path.write_bytes(damaged[damage])
    again = ResponseStore(str(path), 10, 1 << 20)
    assert names(again, "a") == []
    assert again.put(0, stored("b"))
    again.close()
    assert (tmp_path / "r.sqlite.damaged").read_bytes()[:40] == damaged[damage][:40]
    assert "is damaged" in caplog.text


def test_damage_while_two_processes_use_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    first, second = (ResponseStore(str(path), 10, 1 << 20) for _ in range(2))
    assert first.put(0, stored("a", 50_000))
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.write(b"\xff" * (1 << 16))
    assert [names(second, "a") for _ in range(2)] == [[], []]
    assert first.put(0, stored("b"))
    assert second.put(0, stored("c"))
    assert names(first, "b", "c") == names(second, "b", "c") == ["b", "c"]
    assert {file.name for file in tmp_path.iterdir()} >= {"r.sqlite", "r.sqlite.damaged"}
    for store in (first, second):
        store.close()


def test_a_log_that_was_emptied_costs_what_was_in_it(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    first, second = (ResponseStore(str(path), 10, 1 << 20) for _ in range(2))
    assert first.put(0, stored("a", 50_000))
    (tmp_path / "r.sqlite-wal").write_bytes(b"")
    names(second, "a")
    for store in (first, second):
        store.put(0, stored("lost"))
        assert store.put(0, stored("b" if store is first else "c"))
        assert names(store, "b" if store is first else "c")
        store.close()


def test_a_file_that_was_taken_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    store = ResponseStore(str(path), 10, 1 << 20)
    assert store.put(0, stored("a"))
    for file in tmp_path.iterdir():
        file.unlink()
    assert store.put(0, stored("b"))
    assert names(store, "a", "b") == ["b"]
    store.close()


def test_what_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    store = ResponseStore(str(path), 10, 1 << 20)
    assert store.put(0, stored("a"))
    for file in tmp_path.iterdir():
        file.unlink()
    path.mkdir()
    for _ in range(2):
        store.wait_at_most(1.0)
        assert not store.put(0, stored("b"))
    path.rmdir()
    store.wait_at_most(1.0)
    assert store.put(0, stored("c"))
    assert names(store, "a", "b", "c") == ["c"]
    store.close()


def test_a_damaged_response_is_not_found(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    store = ResponseStore(str(path), 10, 1 << 20)
    assert store.put(0, stored("a"))
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("UPDATE responses SET response = ?", (b"{torn",))
        other.commit()
    with pytest.raises(RequestError, match="not found"):
        store.get(0, "a")
    store.close()


def test_a_database_that_takes_nothing() -> None:
    store = ResponseStore(":memory:", 10, 1 << 20)
    assert store.put(0, stored("a"))
    store._database.execute("PRAGMA query_only = 1")  # as on a disk that is full
    assert not store.put(0, stored("b"))
    with pytest.raises(RequestError) as raised:
        store.delete(0, "a")
    assert raised.value.status == 503
    store.close()
    for read in (store.get, store.history):
        with pytest.raises(RequestError) as raised:
            read(0, "a")
        assert raised.value.status == 503


def test_nobody_waits_for_a_database_that_another_process_writes_to(tmp_path: Path) -> None:
    config = ServerConfig(responses_directory=str(tmp_path))
    with AppServer(config) as app, httpx.Client(base_url=app.url, timeout=20) as http, ThreadPoolExecutor() as threads:
        kept = http.post("/v1/responses", json={"input": "x", "store": True}).json()
        assert kept["store"] is True
        with contextlib.closing(sqlite3.connect(tmp_path / "responses.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            asked = threads.submit(http.post, "/v1/responses", json={"input": "y", "store": True, "stream": True})
            while app.pool.submitted.qsize() < 2 or len(app.pool.router):
                threading.Event().wait(0.01)
            assert http.post("/v1/responses", json={"input": "z"}).status_code == 200
            assert not asked.done()
            body = {"input": "w", "previous_response_id": kept["id"]}
            assert http.post("/v1/responses", json=body).status_code == 200
            assert http.delete(f"/v1/responses/{kept['id']}").status_code == 503
            done = parse_events(asked.result().text)[-1].data["response"]
            assert (done["status"], done["store"]) == ("completed", False)
            assert http.get(f"/v1/responses/{done['id']}").status_code == 404
            other.execute("ROLLBACK")
        assert http.delete(f"/v1/responses/{kept['id']}").status_code == 200

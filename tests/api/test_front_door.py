"""Keys, CORS, hosts, prefixes, request ids: what holds whatever the route."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sparkinfer.config import ServerConfig
from sparkinfer.errors import ConfigError
from tests.api.app_server import AppServer
from workers.http_access_log import AccessLog
from workers.http_api_keys import ApiKeys
from workers.http_body_thread import BodyThread
from workers.http_exchange import Exchange

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}]}
PATHS = (CHAT, "/v1/completions", "/v1/tokenize", "/v1/models", "/v1/models/tiny", "/metrics", "/health", "/nope")
PAGE = "http://localhost:3000"


@pytest.fixture(scope="module")
def locked() -> Iterator[AppServer]:
    """Keys, two known origins, one host name, a prefix."""
    config = ServerConfig(
        api_keys=("alpha", "beta"), cors_origins=("loopback", "https://chat.example"),
        allowed_hosts=("127.0.0.1", "api.example"), path_prefix="/llm/v2",
    )  # fmt: skip
    with AppServer(config) as running:
        yield running


def preflight(origin: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-api-key,anthropic-version,content-type",
    }


@pytest.mark.parametrize("path", PATHS)
def test_preflight_needs_no_key(locked: AppServer, path: str) -> None:
    response = httpx.options(f"{locked.url}/llm/v2{path}", headers=preflight(PAGE))
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers["access-control-allow-origin"] == PAGE
    assert "anthropic-version" in response.headers["access-control-allow-headers"]
    assert "POST" in response.headers["access-control-allow-methods"] or "GET" in response.headers["allow"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("key", ["alpha", "wrong"])
def test_every_reply_has_cors_headers(locked: AppServer, path: str, key: str) -> None:
    headers = {"origin": PAGE, "authorization": f"Bearer {key}"}
    for method in ("GET", "POST", "PUT"):
        response = httpx.request(method, f"{locked.url}/llm/v2{path}", headers=headers, json=BODY)
        assert response.headers["access-control-allow-origin"] == PAGE, (method, response.status_code)
        assert response.headers["vary"] == "origin"
        assert response.headers["x-request-id"]


def test_streams_have_the_common_headers(locked: AppServer) -> None:
    headers = {"origin": "https://chat.example", "x-api-key": "beta", "x-request-id": "trace-7"}
    response = httpx.post(f"{locked.url}/llm/v2{CHAT}", headers=headers, json=BODY | {"stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["access-control-allow-origin"] == "https://chat.example"
    assert response.headers["x-request-id"] == "trace-7"


ORIGINS = {
    "http://localhost": True, "https://127.0.0.1:5173": True, "http://[::1]:1": True, "http://app.localhost:80": True,
    "https://chat.example": True, "https://chat.example.evil": False, "http://localhost.evil": False,
    "http://127.0.0.1.evil": False, "https://evil": False, "null": False, "http://localhost:3000/": False,
}  # fmt: skip


@pytest.mark.parametrize(("origin", "is_known"), ORIGINS.items())
def test_only_known_origins_are_let_in(locked: AppServer, origin: str, is_known: bool) -> None:
    for method in ("OPTIONS", "GET"):
        response = httpx.request(method, f"{locked.url}/llm/v2/health", headers=preflight(origin))
        assert ("access-control-allow-origin" in response.headers) == is_known


WEBSITES = {  # origin -> whether it may make the server work
    PAGE: True, "https://chat.example": True, "app://obsidian.md": True, "vscode-webview://x": True,
    "http://evil.example": False, "https://chat.example.evil": False, "http://localhost.evil.example": False,
    "null": False,
}


@pytest.mark.parametrize(("origin", "is_let_in"), WEBSITES.items())
def test_a_website_cannot_make_the_server_work(locked: AppServer, origin: str, is_let_in: bool) -> None:
    """Browsers send a POST of plain text without asking first."""
    headers = {"origin": origin, "content-type": "text/plain", "x-api-key": "wrong"}
    response = httpx.post(f"{locked.url}/llm/v2{CHAT}", headers=headers, content=json.dumps(BODY))
    assert response.status_code == (401 if is_let_in else 403)
    if not is_let_in:
        assert response.json()["error"]["code"] == "origin_not_allowed"
    assert httpx.get(f"{locked.url}/llm/v2/health", headers=headers).status_code == 200


def test_a_page_of_the_same_host_is_no_other_website() -> None:
    with AppServer(ServerConfig(cors_origins=())) as app:
        headers = {"host": "models.example:8443", "origin": "https://models.example:8443"}
        body = {"messages": [], "model": "x"}
        assert httpx.post(f"{app.url}{CHAT}", headers=headers, json=body).status_code == 400
        headers["origin"] = "https://other.example:8443"
        assert httpx.post(f"{app.url}{CHAT}", headers=headers, json=body).status_code == 403


def test_any_origin_comes_without_credentials() -> None:
    with AppServer(ServerConfig(cors_origins=("*",))) as app:
        response = httpx.get(f"{app.url}/health", headers={"origin": "https://anywhere"})
        assert response.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in response.headers


KEYS = [
    ({"authorization": "Bearer alpha"}, 200), ({"authorization": "bearer  beta"}, 200), ({"x-api-key": "beta"}, 200),
    ({}, 401), ({"authorization": "alpha"}, 401), ({"authorization": "Basic alpha"}, 401),
    ({"authorization": "Bearer"}, 401), ({"authorization": "Bearer alphabeta"}, 401), ({"x-api-key": ""}, 401),
    ({"authorization": "Bearer none", "x-api-key": "alpha"}, 401), ({"authorization": b"Bearer \xe9"}, 401),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "status"), KEYS)
def test_keys(locked: AppServer, headers: dict[str, str], status: int) -> None:
    response = httpx.post(f"{locked.url}/llm/v2{CHAT}", headers=headers, json=BODY)
    assert response.status_code == status
    if status == 401:
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["code"] == "invalid_api_key"


def test_requests_carry_their_key_as_a_number(locked: AppServer) -> None:
    while not locked.pool.submitted.empty():
        locked.pool.submitted.get()
    for key in ("alpha", "beta", "alpha"):
        httpx.post(f"{locked.url}/llm/v2{CHAT}", headers={"x-api-key": key}, json=BODY | {"priority": -3})
    first, second, third = (locked.pool.submitted.get(timeout=10) for _ in range(3))
    assert first.client_id == third.client_id != second.client_id
    assert all(0 < request.client_id < 2**63 and request.priority == -3 for request in (first, second, third))


@pytest.mark.parametrize("path", ["/v1/models", "/llm/v2x/v1/models", "/llm", "/", "/llm/v1/models"])
def test_nothing_outside_the_prefix(locked: AppServer, path: str) -> None:
    assert httpx.get(locked.url + path).status_code == 404


@pytest.mark.parametrize(("host", "status"), [("api.example:80", 200), ("API.example", 200), ("evil.example", 403)])
def test_hosts(locked: AppServer, host: str, status: int) -> None:
    assert httpx.get(f"{locked.url}/llm/v2/health", headers={"host": host}).status_code == status


@pytest.mark.parametrize("given", ["a b", "x" * 200, "é", "{}"])
def test_odd_request_ids_are_replaced(http: httpx.Client, given: str) -> None:
    sent = http.get("/health", headers={"x-request-id": given.encode()}).headers["x-request-id"]
    assert re.fullmatch(r"req_[0-9a-f]{24}", sent)


def test_keys_of_the_file_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# team a\nfirst # rotated monthly\n\n")
    with AppServer(ServerConfig(api_keys=("fixed",), api_keys_file=str(file))) as app:

        def status(key: str) -> int:
            return httpx.post(app.url + CHAT, headers={"x-api-key": key}, json=BODY).status_code

        assert [status(key) for key in ("fixed", "first", "second", "# team a")] == [200, 200, 401, 401]
        for text, expected in (("second", [200, 401, 200]), ("", [200, 401, 200]), ("\xff", [200, 401, 200])):
            file.write_text(text)
            app.call(app.keys.reload)
            assert [status(key) for key in ("fixed", "first", "second")] == expected


@pytest.mark.parametrize("text", ["", "# only a comment\n", "cl\xe9\n"])
def test_unusable_key_files_stop_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    for file in (tmp_path / "keys", tmp_path / "missing"):
        with pytest.raises(ConfigError, match="api_keys_file"):
            ApiKeys(("fixed",), str(file))


def test_access_log_tells_no_text(app: AppServer, capfd: pytest.CaptureFixture[str]) -> None:
    class Scope:
        method, path, client, headers = "POST", "/v1/completions" + "x" * 999, "127.0.0.1:1", {}

    exchange = Exchange(Scope(), None, "/v1/completions", 1, BodyThread())  # type: ignore[arg-type]
    exchange.request_id = "req_1"
    AccessLog("http-0", is_enabled=False).write(exchange, 200)
    AccessLog("http-0", is_enabled=True).write(exchange, 404)
    line = json.loads(capfd.readouterr().out)
    assert line["status"] == 404
    assert set(line) == {"time", "worker", "request_id", "client", "method", "path", "status", "seconds"}
    assert len(line["path"]) == 256

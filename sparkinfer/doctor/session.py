"""HTTP to the server under examination, with the standard library alone. Knows no API."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkinfer.doctor.sse_events import SseEvent, parse_events


class CheckFailed(Exception):
    """What the server did is not what the client needs; the message says why."""


class NoAnswer(CheckFailed):
    """Nothing came back, or no end of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, read to its end."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    text: str

    def json(self) -> Any:
        """Its body decoded; CheckFailed when it is no JSON."""
        try:
            return json.loads(self.text)
        except ValueError:
            raise CheckFailed(f"status {self.status} without JSON: {shortened(self.text)}") from None

    def events(self) -> list[SseEvent]:
        """Its server-sent events."""
        return parse_events(self.text)


class Session:
    """One server. Each request has a connection of its own."""

    def __init__(self, url: str, key: str = "", timeout_s: float = 120.0) -> None:
        """url: of the server's root, with a path prefix if it has one; key: "" where none is needed; timeout_s: of
        one request and its whole answer. ValueError for what is no such URL.
        """
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        if not parts.hostname or parts.scheme not in ("http", "https"):
            raise ValueError(f"{url!r} is no URL of a server, such as http://127.0.0.1:8080")
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s
        self.key = key

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request; the key goes along unless `headers` say how. NoAnswer when nothing comes back in time."""
        sent = {"authorization": f"Bearer {self.key}"} if self.key else {}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            sent["content-type"] = "application/json"
        sent |= headers or {}
        make = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = make(self._host, self._port, timeout=self._timeout_s)
        is_late = threading.Event()
        watch: threading.Timer | None = None
        try:
            connection.connect()
            watch = threading.Timer(self._timeout_s, _hang_up, (connection.sock, is_late))
            watch.daemon = True
            watch.start()
            connection.request(method, self._prefix + path, data, sent)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
            names = {name.lower(): value for name, value in response.getheaders()}
            if not is_late.is_set():
                return Answer(response.status, names, text)
        except (OSError, http.client.HTTPException) as error:
            if not is_late.is_set() and not isinstance(error, TimeoutError):
                raise NoAnswer(f"no answer: {error or type(error).__name__}") from None
        finally:
            if watch is not None:
                watch.cancel()
            connection.close()
        raise NoAnswer(f"no whole answer within {self._timeout_s:g} s")

    def get(self, path: str) -> Any:
        """The JSON behind a GET that must work."""
        return ok(self.send("GET", path)).json()

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer to a POST that must work."""
        return ok(self.send("POST", path, body, headers))


def ok(answer: Answer) -> Answer:
    """The answer, if its status is 200."""
    if answer.status != 200:
        raise CheckFailed(f"status {answer.status}: {shortened(answer.text)}")
    return answer


def shortened(text: str) -> str:
    """What fits a line of the table, whatever the server sent."""
    line = "".join(character if character.isprintable() else " " for character in text[:400])
    return " ".join(line.split())[:200]


def expect(condition: object, reason: str) -> None:
    """Raise CheckFailed unless `condition` holds."""
    if not condition:
        raise CheckFailed(reason)


def expect_keys(value: Any, *keys: str) -> None:
    """Every key is there, and is not null."""
    expect(isinstance(value, dict), f"not an object: {shortened(str(value))[:80]}")
    missing = [key for key in keys if value.get(key) is None]
    expect(not missing, f"missing or null: {', '.join(missing)}")


def expect_no(problems: list[str]) -> None:
    """A stream kept its rules."""
    expect(not problems, "; ".join(problems[:3]))


def _hang_up(connection: socket.socket, is_late: threading.Event) -> None:
    """Whoever reads from the connection is woken."""
    is_late.set()
    with contextlib.suppress(OSError):  # closed meanwhile
        connection.shutdown(socket.SHUT_RDWR)

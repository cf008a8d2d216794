"""HTTP to the server under examination, with the standard library alone. Knows no API."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkinfer.doctor.sse_events import SseEvent, parse_events


class CheckFailed(Exception):
    """What the server did is not what the client needs; the message says why."""


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
            raise CheckFailed(f"status {self.status} without JSON: {self.text[:120]!r}") from None

    def events(self) -> list[SseEvent]:
        """Its server-sent events."""
        return parse_events(self.text)


class Session:
    """One server. Each request has a connection of its own."""

    def __init__(self, url: str, key: str = "", timeout_s: float = 120.0) -> None:
        """url: of the server's root, with a path prefix if it has one; key: "" where none is needed."""
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        if parts.hostname is None:
            raise ValueError(f"{url!r} is no URL")
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s
        self.key = key

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request; the key goes along unless `headers` say how. CheckFailed when nothing comes back."""
        sent = {"authorization": f"Bearer {self.key}"} if self.key else {}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            sent["content-type"] = "application/json"
        sent |= headers or {}
        make = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = make(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, self._prefix + path, data, sent)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, text)
        except (OSError, http.client.HTTPException) as error:
            raise CheckFailed(f"no answer: {error or type(error).__name__}") from None
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The JSON behind a GET that must work."""
        return ok(self.send("GET", path)).json()

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer to a POST that must work."""
        return ok(self.send("POST", path, body, headers))


def ok(answer: Answer) -> Answer:
    """The answer, if its status is 200."""
    if answer.status != 200:
        raise CheckFailed(f"status {answer.status}: {answer.text[:200]}")
    return answer


def expect(condition: object, reason: str) -> None:
    """Raise CheckFailed unless `condition` holds."""
    if not condition:
        raise CheckFailed(reason)


def expect_keys(value: Any, *keys: str) -> None:
    """Every key is there, and is not null."""
    expect(isinstance(value, dict), f"not an object: {str(value)[:80]}")
    missing = [key for key in keys if value.get(key) is None]
    expect(not missing, f"missing or null: {', '.join(missing)}")


def expect_no(problems: list[str]) -> None:
    """A stream kept its rules."""
    expect(not problems, "; ".join(problems[:3]))

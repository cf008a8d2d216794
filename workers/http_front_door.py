"""What holds for every request before any route sees it: path prefix, Host, CORS, request id.

Knows headers; never bodies, keys or routes.
"""

from __future__ import annotations

import re
import secrets

from sparkinfer.config import ServerConfig
from sparkinfer.errors import RequestError
from workers.http_exchange import Headers, Response, Scope

_LOOPBACK = re.compile(r"https?://(localhost|[\w-]+\.localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?")
_REQUEST_ID = re.compile(r"[\w.~:+/=-]{1,128}", re.ASCII)
_HEADER_NAMES = re.compile(r"[\w!#$%&'*+.^`|~, \t-]{1,4096}", re.ASCII)
_DEFAULT_HEADERS = "authorization, content-type, x-api-key, x-request-id"
_EXPOSED_HEADERS = "x-request-id, retry-after"
_PREFLIGHT_AGE_S = 7200  # browsers cap it there


class FrontDoor:
    """The same answers for all routes, read off the configuration once."""

    def __init__(self, config: ServerConfig) -> None:
        self._prefix = config.path_prefix
        self._hosts = frozenset(host.lower() for host in config.allowed_hosts)
        self._origins = frozenset(config.cors_origins)

    def local_path(self, path: str) -> str:
        """`path` below the prefix and without its trailing slash; "/" for the root, "" for what is not below it."""
        if self._prefix:
            if not path.startswith(self._prefix + "/"):
                return ""
            path = path.removeprefix(self._prefix)
        return path.removesuffix("/") if path.strip("/") else path

    def check_host(self, scope: Scope) -> None:
        """Raise RequestError 403 for a Host that is not ours: a page may have pointed its own name at this address."""
        if not self._hosts:
            return
        host = _host(scope)
        name = host.lower() if host.endswith("]") else re.sub(r":\d*\Z", "", host.lower())
        if name not in self._hosts:
            raise RequestError(403, f"The host {host[:128]!r} is not served here", code="host_not_allowed")

    def check_origin(self, scope: Scope) -> None:
        """Raise RequestError 403 for a page of an unknown origin: browsers ask nobody before they open a WebSocket."""
        origin: str = scope.headers.get("origin", "")
        if origin and "*" not in self._origins and not self._is_known(origin):
            raise RequestError(403, f"The origin {origin[:128]!r} is not served here", code="origin_not_allowed")

    def check_website(self, scope: Scope) -> None:
        """The same for what a browser sends without asking: a website's POST of plain text, whose work it would cause.

        Apps' own origins (app://, vscode-webview://) pass, and so does a page of the host that is asked.
        """
        origin: str = scope.headers.get("origin", "")
        if origin != "null" and not origin.startswith(("http://", "https://")):
            return
        if origin.partition("://")[2].lower() != _host(scope).lower():
            self.check_origin(scope)

    def common_headers(self, scope: Scope, request_id: str) -> Headers:
        """Headers of every response, whatever became of the request."""
        headers = [("x-request-id", request_id)]
        origin: str = scope.headers.get("origin", "")
        if not self._origins or not origin:
            return headers
        if "*" in self._origins:
            headers.append(("access-control-allow-origin", "*"))
        else:
            headers.append(("vary", "origin"))
            if not self._is_known(origin):
                return headers
            headers += [("access-control-allow-origin", origin), ("access-control-allow-credentials", "true")]
        headers.append(("access-control-expose-headers", _EXPOSED_HEADERS))
        return headers

    def preflight(self, scope: Scope, methods: str) -> Response:
        """The answer to OPTIONS, for which browsers send no key. methods: as in the Allow header."""
        headers = [("allow", methods)]
        origin: str = scope.headers.get("origin", "")
        if origin and ("*" in self._origins or self._is_known(origin)):
            asked: str = scope.headers.get("access-control-request-headers", "")
            headers += [
                ("access-control-allow-methods", methods),
                ("access-control-allow-headers", asked if _HEADER_NAMES.fullmatch(asked) else _DEFAULT_HEADERS),
                ("access-control-max-age", str(_PREFLIGHT_AGE_S)),
            ]
            if scope.headers.get("access-control-request-private-network", ""):
                headers.append(("access-control-allow-private-network", "true"))
        return Response(204, b"", headers)

    def _is_known(self, origin: str) -> bool:
        return origin in self._origins or ("loopback" in self._origins and _LOOPBACK.fullmatch(origin) is not None)


def _host(scope: Scope) -> str:
    host: str = scope.headers.get("host", "") or scope.authority or ""
    return host


def request_id_of(scope: Scope) -> str:
    """The client's x-request-id, or a fresh one when it sent none or one that does not belong in a log."""
    given: str = scope.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"

"""The keys that open the API: from the configuration and from a file that is read again on request.

Knows no route; never logs a key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Sequence
from pathlib import Path

from sparkinfer.errors import ConfigError, RequestError

log = logging.getLogger("http")


class ApiKeys:
    """Accepted keys, kept as digests. No key at all means that none is asked for."""

    def __init__(self, keys: Sequence[str], file: str) -> None:
        """file: path, "" for none. Raises ConfigError when it cannot be used."""
        self._keys = tuple(keys)
        self._file = file
        self._digests = self._read()

    def reload(self) -> None:
        """Read the file again; when it cannot be used, the keys stay what they were."""
        try:
            self._digests = self._read()
        except ConfigError as error:
            log.error("API keys stay as they were: %s", error)
        else:
            log.info("%d API keys", len(self._digests))

    def check(self, authorization: str, x_api_key: str) -> int:
        """The client that a request comes from: a number of 63 bits per key, 0 where no key is asked for.

        Raises RequestError 401 unless one of the two headers carries an accepted key.

        Every key is compared whatever the others gave, so that the time tells nothing about which one was close.
        """
        if not self._digests:
            return 0
        scheme, _, bearer = authorization.partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else x_api_key.strip()
        digest = _digest(given)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise RequestError(401, "A valid API key is required: Authorization: Bearer KEY, or x-api-key: KEY")
        return int.from_bytes(digest[:8], "little") >> 1

    def _read(self) -> tuple[bytes, ...]:
        keys = [*self._keys]
        if self._file:
            try:
                text = Path(self._file).read_text("ascii")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not ASCII text"
                raise ConfigError(f"[server] api_keys_file = {self._file!r}: {reason}") from None
            lines = (line.partition("#")[0].strip() for line in text.splitlines())
            from_file = [line for line in lines if line]
            if not from_file:  # an emptied file must not open the server to everybody
                raise ConfigError(f"[server] api_keys_file = {self._file!r}: has no keys")
            keys += from_file
        return tuple(map(_digest, keys))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()

"""Files that outlive the process: one per block of keys and values, one per state. Knows names and bytes; never tokens.

    <directory>/<fingerprint>/<name>

    file                       bytes
    magic "SPKPFX01"               8
    BLAKE2b-128 of name, payload  16
    payload                        -

A file is written under another name and then renamed, so that it is there whole or not at all. What a reader finds
damaged is removed. Several models may share a directory; disk_gib counts them all, least recently used first to go.
Several servers may, too: each counts what was there when it started and what it wrote. A temporary file belongs to
whoever holds a lock on it (flock(2)); what nobody holds is left over from a crash.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from sparkinfer.errors import ConfigError

log = logging.getLogger("prefix_cache")

MAGIC = b"SPKPFX01"
DIGEST_BYTES = 16
HEADER_BYTES = len(MAGIC) + DIGEST_BYTES
MAX_QUEUED_WRITES = 256
MAX_QUEUED_BYTES = 1 << 30  # host memory that payloads on their way may hold, a state being 60 MB of a 35B-A3B

_FILE = re.compile(r"[0-9a-f]{32}/[0-9a-f]{32}\.(kv|state)")


class PrefixDisk:
    """One folder of one model's files. Reads and writes have a thread each; the index is shared under a lock."""

    def __init__(self, directory: Path, fingerprint: str, max_bytes: int) -> None:
        """fingerprint: 32 hexadecimal digits. Raises ConfigError when the directory cannot be used."""
        self._directory = directory
        self._folder = fingerprint
        self._token = secrets.token_hex(4)  # in the names of our temporary files
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._num_bytes = 0
        self._num_queued = self._num_queued_bytes = 0
        try:
            (directory / fingerprint).mkdir(parents=True, exist_ok=True)
            self._scan()
        except OSError as error:
            raise ConfigError(f"[prefix_cache] directory = {str(directory)!r}: {error.strerror}") from None
        if not os.access(directory / fingerprint, os.W_OK | os.X_OK):
            raise ConfigError(f"[prefix_cache] directory = {str(directory)!r}: {fingerprint} in it is not writable")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="prefix_read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="prefix_write")

    def has(self, name: str) -> bool:
        """Whether the file is there, for all we know."""
        return f"{self._folder}/{name}" in self._sizes

    def read(self, names: list[str]) -> Future[list[bytes]]:
        """The payloads in order, up to the first that is missing or damaged."""
        return self._reader.submit(self._read_all, names)

    def write(self, name: str, payload: bytes) -> None:
        """Keep a payload, in the background; nothing happens if it is there, or if too many wait."""
        with self._lock:
            num_bytes = self._num_queued_bytes + len(payload)
            if self._num_queued >= MAX_QUEUED_WRITES or (self._num_queued and num_bytes > MAX_QUEUED_BYTES):
                return
            if self.has(name):
                return
            self._num_queued, self._num_queued_bytes = self._num_queued + 1, num_bytes
        self._writer.submit(self._write, name, payload)

    def flush(self) -> None:
        """Return when everything written so far is on disk."""
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Finish the writes and end the threads."""
        self._reader.shutdown()
        self._writer.shutdown()

    def _scan(self) -> None:
        """Enter what is there into the index. Other servers may take files away meanwhile, or let nobody see theirs."""
        found = []
        for folder in os.scandir(self._directory):
            if folder.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    found += [(stat.st_mtime_ns, key, stat.st_size) for key, stat in self._files_in(folder)]
        for _, key, size in sorted(found):
            self._add(key, size)

    def _files_in(self, folder: os.DirEntry[str]) -> Iterator[tuple[str, os.stat_result]]:
        for entry in os.scandir(folder.path):
            key = f"{folder.name}/{entry.name}"
            if _FILE.fullmatch(key):
                with contextlib.suppress(FileNotFoundError):
                    yield key, entry.stat()
            elif folder.name == self._folder and entry.name.endswith(".tmp"):
                _remove_leftover(Path(entry.path))

    def _read_all(self, names: list[str]) -> list[bytes]:
        payloads: list[bytes] = []
        for name in names:
            payload = self._read(name)
            if payload is None:
                # Whoever asked computes all of this again: let it be written again, whatever else is damaged of it.
                for later in names[len(payloads) :]:
                    self._forget(f"{self._folder}/{later}")
                break
            payloads.append(payload)
        return payloads

    def _read(self, name: str) -> bytes | None:
        key = f"{self._folder}/{name}"
        path = self._directory / key
        try:
            content = path.read_bytes()
        except (OSError, MemoryError):
            return None
        with contextlib.suppress(OSError):  # a hint for the next start, which needs the file's owner
            os.utime(path)
        payload = content[HEADER_BYTES:]
        if content[:HEADER_BYTES] != MAGIC + _digest(name, payload):
            log.warning("%s is damaged and not used", path)
            _remove(path)
            return None
        with self._lock:
            if key in self._sizes:
                self._sizes.move_to_end(key)
        return payload

    def _write(self, name: str, payload: bytes) -> None:
        key = f"{self._folder}/{name}"
        path = self._directory / key
        temporary = path.with_suffix(f".{self._token}.tmp")
        try:
            with open(temporary, "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.write(MAGIC + _digest(name, payload))
                file.write(payload)
                file.flush()
                os.replace(temporary, path)
            self._add(key, HEADER_BYTES + len(payload))
        except OSError as error:
            log.warning("%s was not written: %s", path, error.strerror)
            _remove(temporary)
        finally:
            with self._lock:
                self._num_queued -= 1
                self._num_queued_bytes -= len(payload)

    def _add(self, key: str, size: int) -> None:
        """Enter a file into the index; the least recently used ones go while there are too many bytes."""
        with self._lock:
            self._num_bytes += size - self._sizes.pop(key, 0)
            self._sizes[key] = size
            victims = []
            while self._num_bytes > self._max_bytes and self._sizes:
                victim, num_bytes = self._sizes.popitem(last=False)
                self._num_bytes -= num_bytes
                victims.append(victim)
        for victim in victims:
            _remove(self._directory / victim)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._num_bytes -= self._sizes.pop(key, 0)


def _remove_leftover(temporary: Path) -> None:
    """Delete a temporary file unless somebody is writing it."""
    with contextlib.suppress(OSError), open(temporary, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.unlink()


def _remove(path: Path) -> None:
    """Delete a file if it can be deleted; what stays is damaged for its next reader as well."""
    with contextlib.suppress(OSError):
        path.unlink()


def _digest(name: str, payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=DIGEST_BYTES, key=name.encode()[:64]).digest()

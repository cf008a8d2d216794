"""A piece of shared memory without a name: a sealed memfd and its mapping.

Owns the descriptor and the mapping of this process; never knows what the bytes mean.

The supervisor creates every segment and hands its descriptor to children with `Popen(pass_fds=[segment.fd])`.
Nothing has to be unlinked: the memory goes when the last process that holds it is gone. The size is fixed by
F_SEAL_SHRINK | F_SEAL_GROW, so that no process can make another one's access fault.

    fd ──▶ memfd "name"   [0 .. size) bytes, zero when created, all pages allocated at creation
"""

from __future__ import annotations

import fcntl
import mmap
import os

_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Segment:
    """`size` bytes shared between processes. Owns `fd`; `close` gives back both the descriptor and the mapping."""

    def __init__(self, name: str, fd: int, size: int) -> None:
        self.name = name
        self.fd = fd
        self.size = size
        self.buffer = mmap.mmap(fd, size)

    @classmethod
    def create(cls, name: str, size: int) -> Segment:
        """A new zeroed segment; the descriptor is close-on-exec, `pass_fds` opens it to one child.

        Raises MemoryError naming the segment when the machine has no room for it, now and not at the first write.
        """
        if size <= 0:
            raise ValueError(f"shared segment {name!r}: size must be positive, got {size}")
        available = _available_bytes()
        if size > available:
            raise MemoryError(f"no room for shared segment {name!r} of {size} bytes: {available} are available")
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
            return cls(name, fd, size)
        except OSError as error:
            os.close(fd)
            raise MemoryError(f"no room for shared segment {name!r} of {size} bytes: {error.strerror}") from error

    @classmethod
    def attach(cls, fd: int, size: int) -> Segment:
        """The segment behind an inherited descriptor, which now belongs to the returned object.

        Raises ValueError when `fd` is not a sealed segment of exactly `size` bytes; `fd` stays the caller's then.
        """
        name = os.readlink(f"/proc/self/fd/{fd}").removeprefix("/memfd:").removesuffix(" (deleted)")
        actual = os.fstat(fd).st_size
        if actual != size:
            raise ValueError(f"shared segment {name!r} (fd {fd}) has {actual} bytes, expected {size}")
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:
            raise ValueError(f"fd {fd} ({name}) is not a shared segment: {error.strerror}") from error
        if seals & _SIZE_SEALS != _SIZE_SEALS:
            raise ValueError(f"shared segment {name!r} (fd {fd}) is not sealed against resizing")
        os.set_inheritable(fd, False)
        return cls(name, fd, size)

    def close(self) -> None:
        """Unmap and close; views into `buffer` must be gone (BufferError otherwise). Closing twice is harmless."""
        if self.buffer.closed:
            return
        self.buffer.close()
        os.close(self.fd)


def _available_bytes() -> int:
    """What the kernel could hand out without swapping; it would rather kill a process than refuse a memfd."""
    with open("/proc/meminfo") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no line MemAvailable")

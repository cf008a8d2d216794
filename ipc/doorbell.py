"""An eventfd that says "look at the ring".

Owns one descriptor; never knows what there is to see. Rings add up until they are acknowledged, so that any number
of them costs the reader one wake-up. Neither side ever blocks.
"""

from __future__ import annotations

import os


class Doorbell:
    """One eventfd, shared by a writer that rings and a reader that waits. Owns `fd`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls) -> Doorbell:
        """A silent doorbell; the descriptor is close-on-exec, `pass_fds` opens it to one child."""
        return cls(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    @classmethod
    def attach(cls, fd: int) -> Doorbell:
        """The doorbell behind an inherited descriptor, which now belongs to the returned object."""
        os.set_inheritable(fd, False)
        return cls(fd)

    def fileno(self) -> int:
        """For `loop.add_reader` and `select`: readable after `ring`, until `acknowledge`."""
        return self.fd

    def ring(self) -> None:
        """Wake the reader; with nobody listening the ring is kept for the next one."""
        try:
            os.eventfd_write(self.fd, 1)
        except BlockingIOError:
            return  # the counter is at its maximum: readable already

    def acknowledge(self) -> bool:
        """Silence the doorbell; True when it had rung. Acknowledge first and drain second, or a ring gets lost."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Give the descriptor back. Closing twice is harmless."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

"""Logging of every process: one line an event, to stderr, with the worker's name. Knows no formats of requests."""

from __future__ import annotations

import logging
import sys


def setup_logging(worker: str, level: str) -> None:
    """Send records of `level` ("debug" ... "error") and above to stderr as `time level worker message`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {worker}: %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("_granian").setLevel("WARNING")  # a line a connection

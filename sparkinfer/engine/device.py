"""Which torch device a name means on this machine, and how much of its memory is free. Knows no model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sparkinfer.engine.memory_plan import GIB, free_host_memory
from sparkinfer.errors import ConfigError

FP8_CAPABILITY = (9, 0)  # of cuBLASLt's products with a scale for 128 columns


def choose_device(name: str, where: str = "[engine] device =") -> torch.device:
    """A torch device; "auto" takes a GPU where there is one. Raises ConfigError, which says `where` the name was."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"{where} {name!r}: allowed: auto, cpu, cuda, cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"{where} {name!r}: allowed: auto, cpu, cuda, cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"{where} {name!r}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def check_prefill_dtype(prefill_dtype: str, device: torch.device, is_deterministic: bool) -> None:
    """Raise ConfigError where [engine] prefill_dtype cannot be had."""
    if prefill_dtype != "fp8":
        return
    key = f"[engine] prefill_dtype = {prefill_dtype!r}"
    if is_deterministic:
        raise ConfigError(f"{key}: not with deterministic = true, for its sums depend on how many rows a step has")
    if device.type != "cuda":
        raise ConfigError(f"{key}: needs an NVIDIA GPU, and the device is {device}")
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) != FP8_CAPABILITY:
        raise ConfigError(
            f"{key}: {torch.cuda.get_device_name(device)} has no FP8 products with scales of blocks; GPUs of compute "
            f"capability 9.0 (H100, H200) have"
        )


def free_memory(device: torch.device) -> int:
    """Bytes that may be had now."""
    return free_host_memory() if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[0])


@contextmanager
def memory_for(what: str, device: torch.device, remedy: str) -> Iterator[None]:
    """Around a start's allocations: raises ConfigError in one sentence where the device has no memory for them.

    what, remedy:  what is made, behind the key that sizes it; what the operator can do
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one, and drivers have theirs for graphs and modules
        if "out of memory" not in str(error):
            raise
        asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
        wanted = f"{asked[1]} more were wanted, " if asked else ""
        raise ConfigError(
            f"{what} found no memory on {device}: {wanted}{free_memory(device) / GIB:.2f} GiB are free; {remedy}"
        ) from error

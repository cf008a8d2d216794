"""Which torch device a name means on this machine, and how much of its memory is free. Knows no model."""

from __future__ import annotations

import torch

from sparkinfer.engine.memory_plan import free_host_memory
from sparkinfer.errors import ConfigError


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


def free_memory(device: torch.device) -> int:
    """Bytes that may be had now."""
    return free_host_memory() if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[0])

"""Host arrays on a device without waiting for what the device does. Knows arrays; never what they mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def on_host(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory to fill whose `to(device, non_blocking=True)` waits for nothing; contents are arbitrary."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type != "cpu")


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A tensor of the array, in order on the current stream; on the CPU it may be the array itself.

    Through pinned memory: from ordinary memory torch would wait for everything before the copy.
    """
    source = torch.from_numpy(np.ascontiguousarray(array))
    return source if device.type == "cpu" else source.pin_memory().to(device, non_blocking=True)

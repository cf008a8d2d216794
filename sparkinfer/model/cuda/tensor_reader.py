"""Tensors of a checkpoint on a device: copied piece by piece through pinned memory and repacked there.

Knows tensor names as keys only; never what a matrix is for.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.quant_format import QuantFormat, QuantWeight
from kernels.repack import concat_rows, repack
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.model.loader import Progress

PIECE_BYTES = 64 << 20          # of pinned memory, twice; large enough that the copies' fixed costs vanish
REPACK_ELEMENTS = 64 << 20      # elements repacked at once: bounds the temporary tensors to about 1 GB


class TensorReader:
    """Reads each tensor once, in any order; `progress` hears of every one."""

    def __init__(self, gguf: GGUFFile, device: torch.device, progress: Progress) -> None:
        self._gguf = gguf
        self._device = device
        self._progress = progress
        self._bytes_total = sum(info.num_bytes for info in gguf.tensors.values())
        self._bytes_done = 0
        self._pinned: list[Tensor] = []
        self._copied: list[torch.cuda.Event | None] = [None, None]

    def has(self, name: str) -> bool:
        return name in self._gguf.tensors

    def values(self, name: str) -> Tensor:
        """A small tensor in f32, in the file's shape."""
        values = np.array(self._gguf.dequantize(name), np.float32)
        self._advance(name)
        return torch.from_numpy(values).to(self._device)

    def raw(self, name: str) -> Tensor:
        """The file's blocks on the device: [num_rows, row_bytes] uint8."""
        source = self._gguf.data(name)
        if self._device.type == "cpu":
            target = torch.from_numpy(np.array(source))
        else:
            target = torch.empty(source.shape, dtype=torch.uint8, device=self._device)
            self._copy(source.reshape(-1), target.view(-1))
        self._advance(name)
        return target

    def weight(self, name: str, row_order: Tensor | None = None) -> QuantWeight:
        """A matrix, or stacked matrices rows end to end, as planes; rows in `row_order` of the file's."""
        return self.planes(name, self.raw(name), row_order)

    def planes(self, name: str, raw: Tensor, row_order: Tensor | None = None) -> QuantWeight:
        """Planes of blocks `raw` that belong to tensor `name`, or to a part of its rows."""
        kind = QuantFormat(int(self._gguf.info(name).ggml_type))
        if row_order is not None:
            raw = raw[row_order]
        rows = max(1, REPACK_ELEMENTS // self._gguf.info(name).shape[-1])
        parts = [repack(piece, kind) for piece in torch.split(raw, rows)]
        return parts[0] if len(parts) == 1 else concat_rows(parts)

    def is_quantised(self, name: str) -> bool:
        """Whether the kernels read the tensor's type as it is, f32 apart."""
        kind = int(self._gguf.info(name).ggml_type)
        return kind in {int(known) for known in QuantFormat} and kind != QuantFormat.F32

    def _copy(self, source: np.ndarray, target: Tensor) -> None:  # type: ignore[type-arg]
        """Through two pinned buffers in turn, so that the next piece is read while the last one travels."""
        if not self._pinned:
            self._pinned = [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        for number, start in enumerate(range(0, source.size, PIECE_BYTES)):
            size = min(PIECE_BYTES, source.size - start)
            pinned, done = self._pinned[number % 2], self._copied[number % 2]
            if done is not None:
                done.synchronize()
            np.copyto(pinned.numpy()[:size], source[start : start + size])
            target[start : start + size].copy_(pinned[:size], non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
            self._copied[number % 2] = event

    def _advance(self, name: str) -> None:
        self._bytes_done += self._gguf.info(name).num_bytes
        self._progress(self._bytes_done, self._bytes_total)


def f32_weight(values: Tensor) -> QuantWeight:
    """A matrix [num_rows, num_cols] of f32 in the kernels' form."""
    values = values.contiguous()
    return QuantWeight(QuantFormat.F32, values.shape[0], values.shape[1], values, values, values, values)


def joined(parts: list[QuantWeight]) -> tuple[QuantWeight, ...]:
    """Neighbours of one format become one matrix, so that fewer take part in a launch."""
    found: list[QuantWeight] = []
    for part in parts:
        if found and found[-1].format == part.format:
            found[-1] = concat_rows([found[-1], part])
        else:
            found.append(part)
    return tuple(found)

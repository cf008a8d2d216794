"""Tensors of a checkpoint on a device: copied piece by piece through pinned memory and repacked there.

Knows tensor names as keys only; never what a matrix is for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.quant_format import QuantFormat, QuantWeight
from kernels.repack import concat_rows, repack, select_rows
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.errors import CheckpointError
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
        self._require_finite(name, torch.from_numpy(values))
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
        """A matrix, or stacked matrices rows end to end, as planes; rows in `row_order` of the file's.

        Types that the kernels do not read become f16, or f32 where f16 cannot hold them.
        """
        if self.is_known(name):
            return self.planes(name, self.raw(name), row_order)
        (weight,) = self.plain([name])
        return weight if row_order is None else select_rows(weight, row_order.to(self._device))

    def plain(self, names: Sequence[str]) -> list[QuantWeight]:
        """Matrices as plain numbers of one kind, whatever their types."""
        matrices = []
        for name in names:
            values = np.array(self._gguf.dequantize(name), np.float32)
            self._require_finite(name, torch.from_numpy(values))
            rows = values.reshape(-1, values.shape[-1])
            factors = self._factors(name)
            matrices.append(rows if factors is None else rows * np.repeat(factors, len(rows) // len(factors))[:, None])
            self._advance(name)
        is_half = all(np.abs(matrix).max(initial=0.0) <= np.finfo(np.float16).max for matrix in matrices)
        dtype = np.float16 if is_half else np.float32
        return [plain_weight(torch.from_numpy(matrix.astype(dtype)).to(self._device)) for matrix in matrices]

    def has_one_type(self, *names: str) -> bool:
        return len({self._gguf.info(name).ggml_type for name in names}) == 1

    def planes(self, name: str, raw: Tensor, row_order: Tensor | None = None) -> QuantWeight:
        """Planes of blocks `raw` that belong to tensor `name`, or to a part of its rows."""
        kind = QuantFormat(int(self._gguf.info(name).ggml_type))
        if row_order is not None:
            raw = raw[row_order]
        rows = max(1, REPACK_ELEMENTS // self._gguf.info(name).shape[-1])
        parts = [repack(piece, kind) for piece in torch.split(raw, rows)]
        weight = parts[0] if len(parts) == 1 else concat_rows(parts)
        self._require_finite(name, *float_planes(weight))
        factors = self._factors(name)
        if kind == QuantFormat.NVFP4 and factors is not None:
            per_row = torch.from_numpy(factors).repeat_interleave(weight.num_rows // len(factors))
            weight.supers.mul_(per_row.to(self._device)[:, None])
        return weight

    def _require_finite(self, name: str, *numbers: Tensor) -> None:
        for tensor in numbers:
            if not torch.stack(torch.aminmax(tensor)).isfinite().all():  # both are NaN if any number is
                raise CheckpointError(
                    f"{self._gguf.path}: tensor {name!r} holds values that are not finite: the file is damaged"
                )

    def _factors(self, name: str) -> npt.NDArray[np.float32] | None:
        """What lies beside a tensor whose format has no room for it: one factor, or one per expert."""
        beside = name.removesuffix(".weight") + ".scale"
        return np.array(self._gguf.dequantize(beside), np.float32).reshape(-1) if self.has(beside) else None

    def is_known(self, name: str) -> bool:
        """Whether the kernels read the tensor's type as it is."""
        return int(self._gguf.info(name).ggml_type) in {int(known) for known in QuantFormat}

    def _copy(self, source: npt.NDArray[np.uint8], target: Tensor) -> None:
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
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            event.record(torch.cuda.current_stream(self._device))
            self._copied[number % 2] = event

    def _advance(self, name: str) -> None:
        self._bytes_done += self._gguf.info(name).num_bytes
        self._progress(self._bytes_done, self._bytes_total)


def float_planes(weight: QuantWeight) -> list[Tensor]:
    """The planes that hold floating-point numbers: scales, or the matrix itself."""
    found = []
    for plane in {id(p): p for p in (weight.quants, weight.scales, weight.supers)}.values():
        is_pair = plane.dtype == torch.int32 and plane is not weight.quants  # f16 d | m
        if is_pair or plane.is_floating_point():
            found.append(plane.view(torch.float16) if is_pair else plane)
    return found


def plain_weight(values: Tensor) -> QuantWeight:
    """A matrix [num_rows, num_cols] of f32 or f16 in the kernels' form."""
    values = values.contiguous()
    kind = QuantFormat.F16 if values.dtype == torch.float16 else QuantFormat.F32
    return QuantWeight(kind, values.shape[0], values.shape[1], values, values, values, values, values)


def joined(parts: list[QuantWeight]) -> tuple[QuantWeight, ...]:
    """Neighbours of one format become one matrix, so that fewer take part in a launch."""
    found: list[QuantWeight] = []
    for part in parts:
        if found and found[-1].format == part.format:
            found[-1] = concat_rows([found[-1], part])
        else:
            found.append(part)
    return tuple(found)

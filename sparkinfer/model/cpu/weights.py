"""Matrices of a checkpoint as the kernels multiply by them. Knows names and types; never what a matrix is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.cpu.pack import pack, pack_dense
from kernels.cpu.packed_layout import LAYOUTS, PANEL_ROWS
from kernels.quant_format import QuantFormat
from sparkinfer.checkpoint.ggml_type import GGMLType
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.errors import CheckpointError
from sparkinfer.model.cpu.memory import aligned_bytes
from sparkinfer.model.loader import Progress, read_tensor, scale_name

Bytes = npt.NDArray[np.uint8]
LAYOUTS_BY_NAME = {quant_format.name: layout for quant_format, layout in LAYOUTS.items()}
FLOAT_KINDS = {GGMLType.F32: "f32", GGMLType.F16: "f16", GGMLType.BF16: "bf16"}


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """One matrix, or a stack of equal ones.

    kind:    name of a QuantFormat, "f32", "f16" or "bf16"
    panels:  [num_matrices * num_panels, panel_bytes]
    """

    kind: str
    num_out: int
    num_columns: int
    panels: Bytes

    @property
    def num_panels(self) -> int:
        """Of one matrix."""
        return -(-self.num_out // PANEL_ROWS)

    @property
    def is_quantised(self) -> bool:
        return self.kind not in FLOAT_KINDS.values()


def kind_of(gguf: GGUFFile, name: str) -> str:
    """What the kernels see a tensor as: its own type if they know it, else f32."""
    info = gguf.info(name)
    if scale_name(name) in gguf.tensors:
        return "f32"
    if info.ggml_type in FLOAT_KINDS:
        return FLOAT_KINDS[info.ggml_type]
    layout = LAYOUTS_BY_NAME.get(info.ggml_type.name)
    return info.ggml_type.name if layout is not None and info.shape[-1] % layout.columns == 0 else "f32"


class WeightReader:
    """Reads each tensor once; `progress` hears of every one."""

    def __init__(self, gguf: GGUFFile, bytes_total: int, progress: Progress) -> None:
        self._gguf, self._progress = gguf, progress
        self._bytes_total, self._bytes_done = bytes_total, 0

    def values(self, name: str, shape: torch.Size) -> Tensor:
        """A small tensor in f32; errors as sparkinfer.model.loader's."""
        tensor = read_tensor(self._gguf, name, shape, torch.device("cpu"))
        self._advance(name)
        return tensor

    def matrices(self, names: Sequence[str]) -> list[PackedMatrix]:
        """Matrices with the same input, or stacks of such, side by side: neighbours of one kind become one."""
        groups: list[list[str]] = []
        for name in names:
            if groups and kind_of(self._gguf, groups[-1][-1]) == kind_of(self._gguf, name):
                groups[-1].append(name)
            else:
                groups.append([name])
        return [self._packed(group) for group in groups]

    def _packed(self, names: list[str]) -> PackedMatrix:
        kind, num_columns = kind_of(self._gguf, names[0]), self._gguf.info(names[0]).shape[-1]
        num_matrices = int(np.prod(self._gguf.info(names[0]).shape[:-2]))
        rows = [self._rows(name, kind).reshape(num_matrices, self._gguf.info(name).shape[-2], -1) for name in names]
        stack = rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)
        num_out = stack.shape[1]
        target: Bytes | None = None
        for index, matrix in enumerate(stack):
            try:
                panels = pack_dense(matrix) if kind in FLOAT_KINDS.values() else pack(matrix, QuantFormat[kind])
            except ValueError as error:
                raise CheckpointError(f"{self._gguf.path}: tensor {', '.join(names)!r} {error}") from error
            if target is None:
                target = aligned_bytes(panels.nbytes * num_matrices).reshape(num_matrices, *panels.shape)
            target[index] = panels
        assert target is not None
        for name in names:
            self._advance(name)
        return PackedMatrix(kind, num_out, num_columns, target.reshape(-1, target.shape[-1]))

    def _rows(self, name: str, kind: str) -> npt.NDArray[Any]:
        """Rows of blocks, of f32 or of 16-bit floats as they are."""
        info = self._gguf.info(name)
        if kind == "f32":
            return read_tensor(self._gguf, name, torch.Size(info.shape), torch.device("cpu")).numpy()
        raw = self._gguf.data(name)
        return raw.view({"f16": np.float16, "bf16": np.uint16}[kind]) if kind in ("f16", "bf16") else raw

    def _advance(self, name: str) -> None:
        self._bytes_done += self._gguf.info(name).num_bytes
        self._progress(self._bytes_done, self._bytes_total)

"""GGUFFile: one model's metadata and tensors, mapped from one or several files.

Owns the mappings. Knows no architecture.
"""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkinfer.checkpoint.gguf_reader import Shard, TensorInfo
from sparkinfer.checkpoint.quants import dequantize
from sparkinfer.checkpoint.shards import read_shards
from sparkinfer.errors import CheckpointError

__all__ = ["GGUFFile", "TensorInfo"]


class GGUFFile:
    """A model file, or a split set of them, mapped read-only.

    Arrays from `data` are views of the mapping and keep it alive; the pages are read when they are touched.
    """

    def __init__(self, shards: list[Shard]) -> None:
        self.path = shards[0].path
        self.paths = [shard.path for shard in shards]
        self.metadata: dict[str, Any] = shards[0].metadata
        self.tensors: dict[str, TensorInfo] = {name: info for shard in shards for name, info in shard.tensors.items()}
        self._buffers = [shard.buffer for shard in shards]
        self._bytes = [np.frombuffer(buffer, np.uint8) for buffer in self._buffers]

    @classmethod
    def open(cls, path: str | Path) -> GGUFFile:
        """The model at `path`: a file, any shard of a split set, or a folder holding one model.

        Raises CheckpointError naming the file and the part that cannot be used.
        """
        return cls(read_shards(Path(path)))

    def release_pages(self) -> None:
        """Give the pages read so far back to the system's cache; they are read again when they are touched again."""
        for buffer in self._buffers:
            buffer.madvise(mmap.MADV_DONTNEED)

    def info(self, name: str) -> TensorInfo:
        """Raises CheckpointError if the model has no tensor of that name."""
        try:
            return self.tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.path}: the model has no tensor {name!r}") from None

    def data(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes as they lie in the file: [rows, row_bytes], read-only, no copy.

        rows is the product of all dimensions but the last.
        """
        info = self.info(name)
        flat = self._bytes[info.shard][info.offset : info.offset + info.num_bytes]
        return flat.reshape(math.prod(info.shape[:-1]), -1)

    def dequantize(self, name: str) -> NDArray[np.float32]:
        """The tensor's values as float32, in `shape`; raises CheckpointError for a type that cannot be decoded."""
        info = self.info(name)
        try:
            return dequantize(self.data(name), info.ggml_type).reshape(info.shape)
        except CheckpointError as error:
            raise CheckpointError(f"{self.paths[info.shard]}: tensor {name!r}: {error}") from error

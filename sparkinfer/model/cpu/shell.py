"""The architecture around a program: small tensors, embedding, the end of the logits. Knows names; never steps."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.checkpoint.quants import dequantize
from sparkinfer.model.architectures import ARCHITECTURES
from sparkinfer.model.cpu.weights import WeightReader
from sparkinfer.model.linear import Embedding, Linear
from sparkinfer.model.llama import RopeDivisors
from sparkinfer.model.loader import Progress, scale_name
from sparkinfer.model.module import Module
from sparkinfer.model.moe import Experts
from sparkinfer.model.transformer import Transformer


class MappedEmbedding(Module):
    """Rows of the embedding decoded from the mapped file when they are asked for: no copy in memory."""

    def __init__(self, gguf: GGUFFile, name: str) -> None:
        self._rows, self._type = gguf.data(name), gguf.info(name).ggml_type
        factor = gguf.dequantize(scale_name(name)) if scale_name(name) in gguf.tensors else np.ones(1, np.float32)
        self._factor = np.float32(factor.reshape(-1)[0])

    def __call__(self, input_ids: Tensor) -> Tensor:
        """input_ids: [num_tokens] int64 -> [num_tokens, hidden_size] f32."""
        return torch.from_numpy(dequantize(self._rows[input_ids.numpy()], self._type) * self._factor)


class Passed(Module):
    """Stands for what the program has done already."""

    def __call__(self, x: Tensor) -> Tensor:
        """x as it is."""
        return x


def read_shell(
    gguf: GGUFFile, hparams: HParams, progress: Progress
) -> tuple[Transformer, WeightReader, dict[int, str]]:
    """The architecture with all but its matrices loaded, a reader for those, and their names by id of their module."""
    shell = ARCHITECTURES[hparams.architecture](hparams, gguf.tensors.keys(), torch.device("cpu"))
    tensors = list(shell.unloaded_tensors())
    reader = WeightReader(gguf, sum(gguf.info(name).num_bytes for name, _, _ in tensors), progress)
    names: dict[int, str] = {}
    for name, owner, attribute in tensors:
        if attribute == "weight" and isinstance(owner, Linear | Embedding | Experts):
            names[id(owner)] = name
        else:
            setattr(owner, attribute, reader.values(name, getattr(owner, attribute).shape))
    for module in shell.modules():
        if isinstance(module, RopeDivisors):
            module.prepare()
    return shell, reader, names


def empty_shell(shell: Transformer, gguf: GGUFFile, names: dict[int, str]) -> None:
    """Leave what comes before the program, and what comes after the logits."""
    embedding = MappedEmbedding(gguf, names[id(shell.token_embd)])
    # the attributes are declared as what they usually are; these are called alike
    shell.token_embd, shell.output_norm, shell.output = embedding, Passed(), Passed()  # type: ignore[assignment]
    shell.blk = []

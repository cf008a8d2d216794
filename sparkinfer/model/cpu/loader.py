"""Loads a checkpoint for the CPU kernels: matrices packed, the rest in f32. Knows the parts; never steps."""

from __future__ import annotations

import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.cpu.context import Writing
from sparkinfer.model.cpu.memory import aligned_bytes, return_freed_memory
from sparkinfer.model.cpu.model import MAX_ROWS, CpuModel
from sparkinfer.model.cpu.model_writer import write_model
from sparkinfer.model.cpu.program import Buffer, ProgramWriter
from sparkinfer.model.cpu.shell import empty_shell, read_shell
from sparkinfer.model.cpu.thread_team import team_of
from sparkinfer.model.loader import Progress


def load_cpu_model(gguf: GGUFFile, hparams: HParams, num_threads: int, progress: Progress) -> CpuModel:
    """Pack the weights and write the program; errors as sparkinfer.model.registry.load_model."""
    shell, reader, names = read_shell(gguf, hparams, progress)
    writer = ProgramWriter(MAX_ROWS)
    stream = torch.from_numpy(aligned_bytes(4 * MAX_ROWS * hparams.hidden_size)).view(torch.float32)
    x = Buffer(stream.data_ptr(), 4 * hparams.hidden_size)
    embeds = write_model(Writing(writer, hparams, reader, names, x), shell)
    empty_shell(shell, gguf, names)
    gguf.release_pages()
    return_freed_memory()
    team = team_of(num_threads)
    return CpuModel(shell, writer.finish(), stream.view(MAX_ROWS, -1), team, embeds)

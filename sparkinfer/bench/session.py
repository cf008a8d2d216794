"""A model on a device for the length of some measurements. Knows how the parts fit; never how they are printed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch

from sparkinfer.bench.bandwidth import copy_bandwidth
from sparkinfer.bench.case import Case, measured_steps
from sparkinfer.bench.loading import Room, load
from sparkinfer.bench.report import Measurement, Setting
from sparkinfer.bench.stopwatch import Stopwatch
from sparkinfer.bench.traffic import Traffic
from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import cache_dir, load_config
from sparkinfer.engine.kv_cache import choose_kv_dtype
from sparkinfer.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Options:
    """model, kv_dtype: as the operator wrote them; threads: of the CPU, None for all."""

    model: str
    device: torch.device
    kv_dtype: str
    max_step_tokens: int
    threads: int | None


class Session:
    """Loads on construction; raises CheckpointError or ConfigError for what cannot be measured."""

    def __init__(self, options: Options, cases: Sequence[Case], say: Callable[[str], None]) -> None:
        device = options.device
        threads = options.threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(threads)
        cache = cache_dir(load_config(None).model)
        gguf = GGUFFile.open(resolve(options.model, cache, say))
        hparams = HParams.from_gguf(gguf)
        max_positions = max(case.num_positions for case in cases)
        _check_context(hparams, gguf, max_positions)
        kv_dtype = choose_kv_dtype(options.kv_dtype, hparams, device)
        room = Room(max(case.num_seqs for case in cases), max_positions, kv_dtype)
        bandwidth = copy_bandwidth(device)
        loaded = load(gguf, hparams, device, room, cache, say)
        self.setting = Setting(
            str(gguf.path), hparams.architecture, sum(info.num_bytes for info in gguf.tensors.values()),
            sum(info.num_elements for info in gguf.tensors.values()), _name(device), loaded.backend,
            str(kv_dtype).removeprefix("torch."), threads, bandwidth,
        )
        self._runner = loaded.runner
        self._traffic = Traffic(gguf, hparams, kv_dtype, loaded.weights_are_f32, loaded.state_passes)
        self._max_step_tokens = options.max_step_tokens
        self._stopwatch = Stopwatch(loaded.runner, hparams.vocab_size, max_positions, options.max_step_tokens)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.close()

    def measure(self, case: Case, repetitions: int) -> Measurement:
        """Run one of the session's cases."""
        steps = measured_steps(case, self._max_step_tokens)
        seconds = tuple(self._stopwatch.seconds(case, repetitions))
        return Measurement(case, seconds, len(steps), sum(map(self._traffic.step_bytes, steps)))


def _check_context(hparams: HParams, gguf: GGUFFile, max_positions: int) -> None:
    if max_positions > hparams.max_position:
        raise CheckpointError(
            f"{gguf.path}: the model's context is {hparams.max_position} tokens; depth and tokens make {max_positions}"
        )


def _name(device: torch.device) -> str:
    return "CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)

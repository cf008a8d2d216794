"""Runs a model with torch, on one thread of its own so that the caller stays free. Knows steps; never requests."""

from __future__ import annotations

import dataclasses
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from sparkinfer.engine import prompt_scores
from sparkinfer.engine.host_copies import HostCopies
from sparkinfer.engine.input_batch import InputBatch, StepInputs
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.mask_gate import MaskGate
from sparkinfer.engine.mask_source import NO_MASK_ROW, MaskSource
from sparkinfer.engine.model_runner import DeviceMemoryError
from sparkinfer.engine.sampler import Sampler
from sparkinfer.engine.sampling_batch import SamplingBatch, SamplingSlots
from sparkinfer.engine.scheduler_output import Logprobs, SchedulerOutput, StepResult
from sparkinfer.engine.state_pool import StatePool
from sparkinfer.model.registry import Model

CPU_OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory"  # torch has no type of its own for this one


@dataclass(frozen=True, slots=True)
class TorchStepHandle:
    """A step on the runner's thread."""

    future: Future[StepResult]

    def is_done(self, timeout_s: float) -> bool:
        return bool(futures.wait((self.future,), timeout_s).done)

    def wait(self) -> StepResult:
        return self.future.result()


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step as it is run, and what is known of it beforehand; inputs None: it computes nothing."""

    output: SchedulerOutput
    inputs: StepInputs | None
    sampling: SamplingBatch | None


class TorchModelRunner:
    """`launch` prepares a step on the caller's thread; forward, sampling and all device state are the runner's.

    What a step that continues constrained sequences computes depends on the masks of the step before it. It is
    prepared on the runner's thread, and so is what is launched until that is done: preparing has one thread at a time.
    """

    def __init__(
        self, model: Model, kv_cache: KVCache, state_pool: StatePool, max_num_seqs: int, max_model_len: int,
        device: torch.device,
    ) -> None:
        """state_pool: has max_num_seqs slots. max_model_len: most tokens of a sequence, in positions it computes."""
        self.prompt_grid = 0
        self.bytes_per_slot = state_pool.bytes_per_slot
        self.chunk_ms: dict[int, float] = {}
        self.num_blocks = kv_cache.num_blocks
        self.block_size = kv_cache.block_size
        self._model = model
        self._kv_cache = kv_cache
        self._state_pool = state_pool
        self._copies = HostCopies(kv_cache, state_pool)
        self._input_batch = InputBatch(max_num_seqs, kv_cache.block_size, max_model_len, device)
        self._sampling_slots = SamplingSlots(max_num_seqs, device)
        self._sampler = Sampler(model.hparams.vocab_size, device)
        self._mask_gate = MaskGate(model.hparams.vocab_size)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model_runner")
        self._prepared: Future[PreparedStep] = Future()
        self._prepared.set_result(PreparedStep(SchedulerOutput(), None, None))

    def launch(self, output: SchedulerOutput) -> TorchStepHandle:
        """Put a step behind those launched before, prepared if may be."""
        if not self._prepared.done() or any(row.mask_row != NO_MASK_ROW for row in output.rows):
            self._prepared = self._thread.submit(self._prepare, output)
        else:
            self._prepared = Future()
            self._prepared.set_result(self._prepare(output))
        return TorchStepHandle(self._thread.submit(self._run, self._prepared))

    def set_mask_source(self, source: MaskSource) -> None:
        """Where the masks of constrained sequences are read, on the runner's thread; before the first of them."""
        self._mask_gate.source = source

    def copy(self, output: SchedulerOutput) -> None:
        self._thread.submit(self._copies.run, output).result()

    def close(self) -> None:
        """Wait for the steps launched and end the thread."""
        self._thread.shutdown()

    def _prepare(self, output: SchedulerOutput) -> PreparedStep:
        output = self._mask_gate.settle(output)
        for row in output.scheduled:
            if row.admitted is not None:
                self._sampling_slots.admit(row.slot, row.admitted)
        rows = output.sampling_rows
        sampling = self._sampling_slots.build(rows) if rows else None
        return PreparedStep(output, self._input_batch.build(output), sampling)

    def _run(self, prepared: Future[PreparedStep]) -> StepResult:
        try:
            with torch.inference_mode():
                step = prepared.result()
                self._copies.run(step.output)
                return self._forward_and_sample(step.output, step.inputs, step.sampling)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or CPU_OUT_OF_MEMORY in str(error):
                raise DeviceMemoryError("There is no memory left for a step of this size.") from error
            raise

    def _forward_and_sample(
        self, output: SchedulerOutput, inputs: StepInputs | None, sampling: SamplingBatch | None
    ) -> StepResult:
        gate, logits = self._mask_gate, None
        scores: list[list[Logprobs]] = []
        if inputs is not None:
            self._input_batch.feed(inputs)
            pools = self._kv_cache, self._state_pool
            logits, scores = prompt_scores.forward(self._model, inputs.forward_batch, *pools, output.computed)
        if sampling is None:
            return StepResult([], scores=scores)
        logits = gate.with_late(logits, output)
        gated = gate.gate(logits, output)
        if gated.masks is not None or gated.void:
            sampling = dataclasses.replace(sampling, masks=gated.masks, void_rows=gated.void)
        sampled = self._sampler.sample(logits, sampling)
        self._input_batch.store([row.slot for row in output.sampling_rows], sampled.token_ids)
        nan_rows = [row for row in (~sampled.is_finite).nonzero()[:, 0].tolist() if row not in gated.void]
        return StepResult(sampled.token_ids.tolist(), sampled.logprobs, nan_rows, gated.empty, gated.late, scores)

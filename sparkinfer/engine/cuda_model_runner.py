"""Runs a covered model with the decode kernels, behind a thread and two streams.

One thread of its own enqueues steps on one stream and never waits for greedy ones; tokens stay on the device for the
step that follows and reach the host through pinned memory. Knows steps; never requests.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from kernels.to_host import to_host
from sparkinfer.engine.cuda_forward import CudaForward
from sparkinfer.engine.cuda_input_batch import CudaInputBatch
from sparkinfer.engine.cuda_sampling import CudaSampling
from sparkinfer.engine.cuda_step import CudaStepHandle, EnqueuedStep
from sparkinfer.engine.host_copies import HostCopies
from sparkinfer.engine.mask_source import MaskSource
from sparkinfer.engine.model_runner import DeviceMemoryError
from sparkinfer.engine.sampling_batch import SamplingBatch
from sparkinfer.engine.scheduler_output import SchedulerOutput
from sparkinfer.model.cuda.pools import CudaPools, DecodePools
from sparkinfer.model.cuda.weights import DecodeWeights


class CudaModelRunner:
    """`launch` hands a step over; the thread enqueues it, in launch order. All device state is the thread's."""

    def __init__(
        self, weights: DecodeWeights, pools: CudaPools, max_num_seqs: int, max_model_len: int, device: torch.device,
        is_deterministic: bool = False,
    ) -> None:
        """is_deterministic: a row's bits depend on its sequence alone"""
        self.num_blocks = pools.kv_cache.num_blocks - 1
        self.block_size = pools.kv_cache.block_size
        self.bytes_per_slot = pools.state_pool.bytes_per_slot
        self._device = device
        self._copies = HostCopies(pools.kv_cache, pools.state_pool)
        self._stream, self._upload_stream = _stream(device), _stream(device)
        self._inputs = CudaInputBatch(max_num_seqs, self.num_blocks, self.block_size, max_model_len, device)
        last_token_ids = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=device)
        self._last_token_ids = last_token_ids
        self._sampling = CudaSampling(weights.output.num_rows, max_num_seqs, device)
        with self._on_device(self._stream):
            self._forward = CudaForward(
                weights, DecodePools.of(pools), self._inputs, last_token_ids, is_deterministic
            )
        self.prompt_grid = self._forward.prompt_grid
        self.chunk_ms: dict[int, float] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cuda_runner")

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """Prepare every batch size; progress(done, total). Before the first launch."""
        with self._on_device(self._stream):
            if self._stream is not None:
                torch.cuda.synchronize()  # pools and weights were filled on other streams
            self.chunk_ms = self._forward.capture(progress)
            self._sampling.warm_up()
            self._download(torch.zeros(2, 1, dtype=torch.int64, device=self._device)).result()  # compiles

    def launch(self, output: SchedulerOutput) -> CudaStepHandle:
        """Put a step behind those launched before."""
        return CudaStepHandle(self._thread.submit(self._run, output))

    def copy(self, output: SchedulerOutput) -> None:
        """Only what a step copies between host and device, behind the steps launched before; waits for it."""
        self._thread.submit(self._copy, output).result()

    def set_mask_source(self, source: MaskSource) -> None:
        """Where the masks of constrained sequences are read, on the runner's thread; before the first of them."""
        self._sampling.set_mask_source(source)

    def close(self) -> None:
        """Wait for the steps launched and end the thread."""
        self._thread.shutdown()
        if self._stream is not None:
            self._stream.synchronize()

    @contextlib.contextmanager
    def _on_device(self, stream: torch.cuda.Stream | None) -> Iterator[None]:
        """Inference on this runner's device and `stream`, whatever the thread's own are."""
        with torch.inference_mode():
            if stream is None:
                yield
                return
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                yield

    def _copy(self, output: SchedulerOutput) -> None:
        with self._on_device(self._stream):
            self._copies.run(output)
        if self._stream is not None:
            self._stream.synchronize()

    def _run(self, output: SchedulerOutput) -> EnqueuedStep:
        output = self._sampling.settle(output)
        try:
            with self._on_device(self._upload_stream):  # where copies wait for no step
                sampling = self._sampling.build(output)
            with self._on_device(self._stream):
                return self._enqueue(output, sampling)
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError("There is no memory left for a step of this size.") from error

    def _enqueue(self, output: SchedulerOutput, sampling: SamplingBatch | None) -> EnqueuedStep:
        self._copies.run(output)
        self._inputs.update(output)
        only_decodes = all(row.token_ids is None for row in output.scheduled)
        if only_decodes and sampling is not None and self._sampling.is_plain(output, sampling):
            return self._download(self._forward.greedy(output.scheduled))
        logits, scores = self._forward.logits(output.computed)
        if sampling is None:
            step = self._download(torch.zeros(2, 0, dtype=torch.int64, device=self._device))
        else:
            step = self._sample(output, sampling, logits)
        return dataclasses.replace(step, scores=scores)

    def _sample(self, output: SchedulerOutput, sampling: SamplingBatch, logits: Tensor) -> EnqueuedStep:
        if self._stream is not None and self._upload_stream is not None:
            self._stream.wait_stream(self._upload_stream)
        slots = self._inputs.upload(np.array([row.slot for row in output.sampling_rows], np.int64))
        result = self._sampling.sample(logits, output, sampling, self._mark())  # waits for masks: little is left to do
        sampled = result.sampled
        self._last_token_ids.index_copy_(0, slots, sampled.token_ids)
        columns = sampled.logprob_columns
        logprobs = None if columns is None else columns.to_host()  # before the event that `_download` records
        step = self._download(torch.stack((sampled.token_ids, sampled.is_finite.long())))
        return dataclasses.replace(step, logprobs=logprobs, sampling=result.batch, gated=result.gated)

    def _mark(self) -> Callable[[], bool]:
        """Tells whether the device has done what is enqueued by now."""
        if self._stream is None:
            return lambda: True
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        event.record(self._stream)
        return event.query

    def _download(self, results: Tensor) -> EnqueuedStep:
        if self._stream is None:
            return EnqueuedStep(results, None)
        host = torch.empty(results.shape, dtype=torch.int64, pin_memory=True)
        to_host(results.contiguous(), host)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        done.record(self._stream)
        return EnqueuedStep(host, done)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it unannotated

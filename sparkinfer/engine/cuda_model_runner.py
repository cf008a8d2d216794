"""Runs a covered model with the decode kernels: decode rows through CUDA graphs, prompts through `Prefill`.

One thread of its own enqueues steps on one stream and never waits for greedy ones; tokens stay on the device for the
step that follows and reach the host through pinned memory. Knows steps; never requests.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from sparkinfer.engine.cuda_graph import DecodeGraphs, SlotTensors
from sparkinfer.engine.cuda_input_batch import CudaInputBatch
from sparkinfer.engine.cuda_step import CudaStepHandle, EnqueuedStep
from sparkinfer.engine.host_copies import HostCopies
from sparkinfer.engine.model_runner import DeviceMemoryError
from sparkinfer.engine.sampler import Sampler
from sparkinfer.engine.sampling_batch import SamplingBatch, SamplingSlots
from sparkinfer.engine.scheduler_output import Logprobs, ScheduledSequence, SchedulerOutput
from sparkinfer.model.cuda.output_head import OutputHead
from sparkinfer.model.cuda.pools import CudaPools, DecodePools
from sparkinfer.model.cuda.prefill import Prefill
from sparkinfer.model.cuda.weights import DecodeWeights


class CudaModelRunner:
    """`launch` hands a step over; the thread enqueues it, in launch order. All device state is the thread's."""

    def __init__(
        self, weights: DecodeWeights, pools: CudaPools, max_num_seqs: int, max_model_len: int, device: torch.device
    ) -> None:
        self.num_blocks = pools.kv_cache.num_blocks - 1
        self.block_size = pools.kv_cache.block_size
        self._device = device
        self._copies = HostCopies(pools.kv_cache, pools.state_pool)
        self._stream, self._upload_stream = _stream(device), _stream(device)
        self._inputs = CudaInputBatch(max_num_seqs, self.num_blocks, self.block_size, max_model_len, device)
        last_token_ids = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=device)
        self._last_token_ids = last_token_ids
        self._sampling_slots = SamplingSlots(max_num_seqs, device)
        self._sampler = Sampler(weights.output.num_rows, device)
        decode_pools = DecodePools.of(pools)
        self._prefill = Prefill(weights, decode_pools, device)
        self._head = OutputHead(weights)
        with self._on_device(self._stream):
            self._graphs = DecodeGraphs(weights, decode_pools, SlotTensors(last_token_ids, self._inputs.block_tables))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cuda_runner")

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """Prepare every batch size; progress(done, total). Before the first launch."""
        with self._on_device(self._stream):
            self._graphs.capture(progress)

    def launch(self, output: SchedulerOutput) -> CudaStepHandle:
        """Put a step behind those launched before."""
        return CudaStepHandle(self._thread.submit(self._run, output))

    def copy(self, output: SchedulerOutput) -> None:
        self._thread.submit(self._copy, output).result()

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

    def _run(self, output: SchedulerOutput) -> EnqueuedStep:
        sampling = self._build_sampling(output)
        try:
            with self._on_device(self._stream):
                return self._enqueue(output, sampling)
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError("There is no memory left for a step of this size.") from error

    def _build_sampling(self, output: SchedulerOutput) -> SamplingBatch | None:
        """On a stream of its own, whose copies wait for no step."""
        with self._on_device(self._upload_stream):
            for row in output.scheduled:
                if row.admitted is not None:
                    self._sampling_slots.admit(row.slot, row.admitted)
            rows = output.sampling_rows
            return self._sampling_slots.build(rows) if rows else None

    def _enqueue(self, output: SchedulerOutput, sampling: SamplingBatch | None) -> EnqueuedStep:
        self._copies.run(output)
        self._inputs.update(output)
        decodes = [row for row in output.scheduled if row.token_ids is None]
        prompts = [row for row in output.scheduled if row.token_ids is not None]
        if not prompts and sampling is not None and is_greedy(sampling):
            return self._download(self._decode(decodes))
        places = {id(row): place for place, row in enumerate(output.sampling_rows)}
        logits = torch.empty(len(places), self._head.vocab_size, device=self._device)
        self._decode_logits(decodes, places, logits)
        self._prefill_logits(prompts, places, logits)
        if sampling is None:
            return self._download(torch.zeros(2, 0, dtype=torch.int64, device=self._device))
        return self._sample(output, sampling, logits)

    def _decode(self, rows: Sequence[ScheduledSequence]) -> Tensor:
        """Greedy results [2, num_rows] of decode rows."""
        return torch.cat([results.clone() for results, _ in self._graphs.run(self._inputs.decode_rows(rows))], dim=1)

    def _decode_logits(self, rows: Sequence[ScheduledSequence], places: dict[int, int], logits: Tensor) -> None:
        if not rows:
            return
        waiting = iter(rows)
        for _, found in self._graphs.run(self._inputs.decode_rows(rows)):
            for row_logits, row in zip(found, waiting):
                logits[places[id(row)]] = row_logits

    def _prefill_logits(self, rows: Sequence[ScheduledSequence], places: dict[int, int], logits: Tensor) -> None:
        if not rows:
            return
        residual = self._prefill.run(self._inputs.prefill_batch(rows))
        sampled = [(number, places[id(row)]) for number, row in enumerate(rows) if id(row) in places]
        if sampled:
            found = self._head.logits(torch.stack([residual[number] for number, _ in sampled]))
            for number, (_, place) in enumerate(sampled):
                logits[place] = found[number]

    def _sample(self, output: SchedulerOutput, sampling: SamplingBatch, logits: Tensor) -> EnqueuedStep:
        if self._stream is not None and self._upload_stream is not None:
            self._stream.wait_stream(self._upload_stream)
        sampled = self._sampler.sample(logits, sampling)
        for number, row in enumerate(output.sampling_rows):
            self._last_token_ids[row.slot] = sampled.token_ids[number]
        results = torch.stack((sampled.token_ids, sampled.is_finite.long()))
        return self._download(results, sampled.logprobs, sampling)

    def _download(
        self, results: Tensor, logprobs: list[Logprobs | None] | None = None, sampling: SamplingBatch | None = None
    ) -> EnqueuedStep:
        if self._stream is None:
            return EnqueuedStep(results, None, logprobs, sampling)
        host = torch.empty(results.shape, dtype=torch.int64, pin_memory=True)
        host.copy_(results, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(self._stream)
        return EnqueuedStep(host, done, logprobs, sampling)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def is_greedy(sampling: SamplingBatch) -> bool:
    """Whether every row takes its best token and nobody asks for more: nothing in the batch is set."""
    values = [getattr(sampling, field.name) for field in dataclasses.fields(sampling)]
    return all(value is None or value == () for value in values)

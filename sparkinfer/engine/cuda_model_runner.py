"""Runs a covered model with the decode kernels: decode rows through CUDA graphs, prompts through `Prefill`.

One thread of its own enqueues steps on one stream and never waits for greedy ones; tokens stay on the device for the
step that follows and reach the host through pinned memory. Knows steps; never requests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from sparkinfer.engine.cuda_graph import DETERMINISTIC_BUCKET, DecodeGraphs, SlotTensors
from sparkinfer.engine.cuda_input_batch import CudaInputBatch
from sparkinfer.engine.cuda_sampling import CudaSampling
from sparkinfer.engine.cuda_step import CudaStepHandle, EnqueuedStep
from sparkinfer.engine.host_copies import HostCopies
from sparkinfer.engine.mask_source import MaskSource
from sparkinfer.engine.model_runner import DeviceMemoryError
from sparkinfer.engine.prompt_graphs import GRAPH_SIZES, PromptGraphs
from sparkinfer.engine.sampling_batch import SamplingBatch
from sparkinfer.engine.scheduler_output import Logprobs, ScheduledSequence, SchedulerOutput, ScoredChunk
from sparkinfer.engine.stepwise_rows import StepwiseRows
from sparkinfer.model.cuda.output_head import OutputHead
from sparkinfer.model.cuda.pools import CudaPools, DecodePools
from sparkinfer.model.cuda.prefill import Prefill
from sparkinfer.model.cuda.weights import DecodeWeights

# Prompts of so many tokens in all take as many decode steps: fewer milliseconds than dequantising every matrix once.
STEPWISE_TOKENS = 16


class CudaModelRunner:
    """`launch` hands a step over; the thread enqueues it, in launch order. All device state is the thread's."""

    def __init__(
        self, weights: DecodeWeights, pools: CudaPools, max_num_seqs: int, max_model_len: int, device: torch.device,
        is_deterministic: bool = False,
    ) -> None:
        """is_deterministic: a row's bits depend on its sequence alone; prompts then go token by token, too"""
        self.num_blocks = pools.kv_cache.num_blocks - 1
        self.block_size = pools.kv_cache.block_size
        self._device = device
        self._copies = HostCopies(pools.kv_cache, pools.state_pool)
        self._stream, self._upload_stream = _stream(device), _stream(device)
        self._inputs = CudaInputBatch(max_num_seqs, self.num_blocks, self.block_size, max_model_len, device)
        last_token_ids = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=device)
        self._last_token_ids = last_token_ids
        self._sampling = CudaSampling(weights.output.num_rows, max_num_seqs, device)
        self._pools = DecodePools.of(pools)
        self._prefill = Prefill(weights, self._pools, device)
        self._head = OutputHead(weights, (DETERMINISTIC_BUCKET,)) if is_deterministic else self._prefill.head
        self._is_deterministic, self._hidden_size = is_deterministic, weights.hidden_size
        slots = SlotTensors(last_token_ids, self._inputs.block_tables)
        graph_sizes = () if self._stream is None or is_deterministic else GRAPH_SIZES
        with self._on_device(self._stream):
            self._prompts = PromptGraphs(self._prefill, self._inputs, graph_sizes)
            self._graphs = DecodeGraphs(weights, self._pools, slots, is_deterministic)
        self._stepwise = StepwiseRows(self._graphs, self._inputs, self._pools, slots)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cuda_runner")

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """Prepare every batch size; progress(done, total). Before the first launch."""
        with self._on_device(self._stream):
            if self._stream is not None:
                torch.cuda.synchronize()  # pools and weights were filled on other streams
            self._graphs.capture(progress)
            self._warm_up()
            self._prompts.capture(lambda done, total: None)

    def _warm_up(self) -> None:
        """Compile what prompts need, on the dummy slot: a first chunk, a next one, a single token, every head size.

        And what sampling needs.
        """
        if self._stream is None:
            return
        self._sampling.warm_up()
        for start, num_tokens in () if self._is_deterministic else self._inputs.dummy_chunks():
            self._prefill.run(self._inputs.dummy_batch(start, num_tokens))
        for num_rows in self._head.sizes:
            self._head.logits(torch.zeros(num_rows, self._hidden_size, device=self._device))

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
        with self._on_device(self._upload_stream):  # where copies wait for no step
            sampling = self._sampling.build(output)
        try:
            with self._on_device(self._stream):
                return self._enqueue(output, sampling)
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError("There is no memory left for a step of this size.") from error

    def _enqueue(self, output: SchedulerOutput, sampling: SamplingBatch | None) -> EnqueuedStep:
        self._copies.run(output)
        self._inputs.update(output)
        decodes = [row for row in output.scheduled if row.token_ids is None]
        prompts = [row for row in output.scheduled if row.token_ids is not None]
        if not prompts and sampling is not None and self._sampling.is_plain(output, sampling):
            return self._download(self._decode(decodes))
        places = {id(row): place for place, row in enumerate(row for row in output.scheduled if row.samples)}
        logits = torch.empty(len(places), self._head.vocab_size, device=self._device)
        is_short = sum(row.num_tokens for row in prompts) <= STEPWISE_TOKENS and not output.scored
        if is_short or self._is_deterministic:
            scores = self._stepwise_logits([*decodes, *prompts], places, logits, output.scored)
        else:
            self._stepwise.run(decodes, places, logits)
            scores = self._prefill_logits(prompts, places, logits, output.scored)
        if sampling is None:
            step = self._download(torch.zeros(2, 0, dtype=torch.int64, device=self._device))
        else:
            step = self._sample(output, sampling, logits)
        return dataclasses.replace(step, scores=scores)

    def _decode(self, rows: Sequence[ScheduledSequence]) -> Tensor:
        """Greedy results [2, num_rows] of decode rows."""
        return torch.cat([found.results.clone() for found in self._graphs.run(self._inputs.decode_rows(rows))], dim=1)

    def _stepwise_logits(
        self, rows: Sequence[ScheduledSequence], places: dict[int, int], logits: Tensor, scored: Sequence[ScoredChunk]
    ) -> list[list[Logprobs]]:
        """As `_prefill_logits`, token by token."""
        if not scored:
            self._stepwise.run(rows, places, logits)
            return []
        num_tokens = sum(row.num_tokens for row in rows)
        residual = torch.empty(num_tokens, self._hidden_size, device=self._device)
        self._stepwise.run(rows, places, logits, residual)
        return self._sampling.scores(residual, rows, scored, self._head.logits)

    def _prefill_logits(
        self, rows: Sequence[ScheduledSequence], places: dict[int, int], logits: Tensor, scored: Sequence[ScoredChunk]
    ) -> list[list[Logprobs]]:
        """Compute chunks of prompts; what `scored` asks of them, for which the device is waited for."""
        if not rows:
            return []
        residual, head = self._prompts.run(rows), self._head
        ends = dict(zip(map(id, rows), itertools.accumulate(row.num_tokens for row in rows)))
        sampled = [(ends[id(row)] - 1, places[id(row)]) for row in rows if id(row) in places]
        if sampled:
            sources, targets = self._inputs.upload(np.array(sampled, np.int64).T.copy())
            logits.index_copy_(0, targets, head.logits(residual.index_select(0, sources)))
        return self._sampling.scores(residual, rows, scored, head.logits)

    def _sample(self, output: SchedulerOutput, sampling: SamplingBatch, logits: Tensor) -> EnqueuedStep:
        if self._stream is not None and self._upload_stream is not None:
            self._stream.wait_stream(self._upload_stream)
        result = self._sampling.sample(logits, output, sampling)
        sampled = result.sampled
        slots = self._inputs.upload(np.array([row.slot for row in output.sampling_rows], np.int64))
        self._last_token_ids.index_copy_(0, slots, sampled.token_ids)
        columns = sampled.logprob_columns
        logprobs = None if columns is None else columns.to_host()  # before the event that `_download` records
        step = self._download(torch.stack((sampled.token_ids, sampled.is_finite.long())))
        return dataclasses.replace(step, logprobs=logprobs, sampling=result.batch, gated=result.gated)

    def _download(self, results: Tensor) -> EnqueuedStep:
        if self._stream is None:
            return EnqueuedStep(results, None)
        host = torch.empty(results.shape, dtype=torch.int64, pin_memory=True)
        host.copy_(results, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(self._stream)
        return EnqueuedStep(host, done)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

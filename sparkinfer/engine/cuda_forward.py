"""The computing part of a step on the decode kernels: rows of any kind to logits. Knows slots, blocks and tokens; never
sampling.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.spans import CHUNK
from sparkinfer.engine.cuda_graph import DETERMINISTIC_BUCKET, DecodeGraphs, SlotTensors
from sparkinfer.engine.cuda_input_batch import CudaInputBatch
from sparkinfer.engine.prompt_graphs import GRAPH_SIZES, PromptGraphs
from sparkinfer.engine.prompt_scores import score_chunks
from sparkinfer.engine.scheduler_output import Logprobs, ScheduledSequence, SchedulerOutput, ScoredChunk
from sparkinfer.engine.stepwise_rows import StepwiseRows
from sparkinfer.model.cuda.output_head import OutputHead
from sparkinfer.model.cuda.pools import DecodePools
from sparkinfer.model.cuda.prefill import Prefill, keeps_rows_apart
from sparkinfer.model.cuda.weights import DecodeWeights

# Prompts of so many tokens in all take as many decode steps: fewer milliseconds than dequantising every matrix once.
STEPWISE_TOKENS = 16


class CudaForward:
    """Used by one thread, on its current stream; only what `scored` asks for waits for the device."""

    def __init__(
        self, weights: DecodeWeights, pools: DecodePools, inputs: CudaInputBatch, last_token_ids: Tensor,
        is_deterministic: bool,
    ) -> None:
        """last_token_ids: as in SlotTensors; is_deterministic: as in CudaModelRunner"""
        device = last_token_ids.device
        slots = SlotTensors(last_token_ids, inputs.block_tables)
        keeps_apart = is_deterministic and keeps_rows_apart(weights)
        self.prompt_grid = CHUNK if keeps_apart else 0  # as ModelRunner has it
        self._has_prompts = keeps_apart or not is_deterministic
        self.prefill = Prefill(weights, pools, device, keeps_apart)
        self.graphs = DecodeGraphs(weights, pools, slots, is_deterministic)
        self._head = OutputHead(weights, (DETERMINISTIC_BUCKET,)) if is_deterministic else self.prefill.head
        self._prompts = PromptGraphs(
            self.prefill, inputs, GRAPH_SIZES if device.type == "cuda" and self._has_prompts else ()
        )
        self._stepwise = StepwiseRows(self.graphs, inputs, pools, slots)
        self._inputs = inputs
        self._is_deterministic, self._hidden_size, self._device = is_deterministic, weights.hidden_size, device

    def capture(self, progress: Callable[[int, int], None]) -> dict[int, float]:
        """Prepare every batch size; progress(done, total). Returns what chunks of prompts take: tokens -> ms."""
        self.graphs.capture(progress)
        if self._device.type == "cuda":
            self._warm_up()
        return self._prompts.capture(lambda done, total: None)

    def _warm_up(self) -> None:
        """Compile what prompts need, on the dummy slot: a first chunk, a next one, a single token, every head size."""
        for start, num_tokens in self._inputs.dummy_chunks() if self._has_prompts else ():
            self.prefill.run(self._inputs.dummy_batch(start, num_tokens))
        for num_rows in self._head.sizes:
            self._head.logits(torch.zeros(num_rows, self._hidden_size, device=self._device))

    def greedy(self, rows: Sequence[ScheduledSequence]) -> Tensor:
        """Results [2, num_rows] of decode rows, as GraphRows has them; their tokens are noted as the last ones."""
        return torch.cat([found.results.clone() for found in self.graphs.run(self._inputs.decode_rows(rows))], dim=1)

    def logits(self, output: SchedulerOutput) -> tuple[Tensor, list[list[Logprobs]]]:
        """[rows that sample, vocab_size] f32, in the step's order, and what the chunks in output.scored say."""
        prompts = [row for row in output.scheduled if self._is_prompt(row)]
        others = [row for row in output.scheduled if not self._is_prompt(row)]
        places = {id(row): place for place, row in enumerate(row for row in output.scheduled if row.samples)}
        logits = torch.empty(len(places), self._head.vocab_size, device=self._device)
        num_tokens = sum(row.num_tokens for row in prompts)
        is_short = num_tokens <= STEPWISE_TOKENS and not output.scored and not self._is_deterministic
        if not prompts or is_short:
            return logits, self._stepwise_logits([*others, *prompts], places, logits, output.scored)
        self._stepwise.run(others, places, logits)
        return logits, self._prefill_logits(prompts, places, logits, output.scored)

    def _is_prompt(self, row: ScheduledSequence) -> bool:
        """Whether a row goes through the kernels of prompts; where bits count, an answer's token never does."""
        if self._is_deterministic:
            return self._has_prompts and self._inputs.is_of_prompt(row)
        return row.token_ids is not None

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
        return score_chunks(residual, rows, scored, self._head.logits)

    def _prefill_logits(
        self, rows: Sequence[ScheduledSequence], places: dict[int, int], logits: Tensor, scored: Sequence[ScoredChunk]
    ) -> list[list[Logprobs]]:
        """Compute chunks of prompts; what `scored` asks of them, for which the device is waited for."""
        residual = self._prompts.run(rows)
        ends = dict(zip(map(id, rows), itertools.accumulate(row.num_tokens for row in rows)))
        sampled = [(ends[id(row)] - 1, places[id(row)]) for row in rows if id(row) in places]
        if sampled:
            sources, targets = self._inputs.upload(np.array(sampled, np.int64).T.copy())
            logits.index_copy_(0, targets, self._head.logits(residual.index_select(0, sources)))
        return score_chunks(residual, rows, scored, self._head.logits)

"""What a step takes of the device's memory beyond weights and pools: the peak of a trial run. Knows no requests."""

from __future__ import annotations

import torch

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.cuda_input_batch import CudaInputBatch
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.prompt_graphs import GRAPH_SIZES
from sparkinfer.model.cuda.pools import CudaPools, DecodePools, RingStatePool
from sparkinfer.model.cuda.prefill import Prefill
from sparkinfer.model.cuda.weights import DecodeWeights


def measure_workspace(
    weights: DecodeWeights, hparams: HParams, block_size: int, kv_dtype: torch.dtype, num_tokens: int
) -> int:
    """Bytes that computing `num_tokens` of prompts in one step takes, with small pools that are gone afterwards.

    Graphs keep memory of their own: as much as the largest of them takes, once more.

    Raises torch.OutOfMemoryError if they are not there.
    """
    device = weights.output.quants.device
    num_blocks = -(-num_tokens // block_size)
    with torch.inference_mode(), torch.cuda.device(device):
        pools = CudaPools(KVCache(hparams, num_blocks + 1, block_size, kv_dtype, device),
                          RingStatePool(hparams, 2, device))
        inputs = CudaInputBatch(1, num_blocks, block_size, num_blocks * block_size, device)
        prefill = Prefill(weights, DecodePools.of(pools), device)
        peaks = [_peak(prefill, inputs, count) for count in (num_tokens, min(num_tokens, GRAPH_SIZES[-1]))]
        del prefill, pools, inputs
        torch.cuda.empty_cache()
    return sum(peaks)


def _peak(prefill: Prefill, inputs: CudaInputBatch, num_tokens: int) -> int:
    device = inputs.block_tables.device
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    prefill.head.logits(prefill.run(inputs.dummy_batch(0, num_tokens))[-1:])
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before

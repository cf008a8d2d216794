"""The engine over a real hybrid model (attention and gated delta net), against the model run in one piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.state_pool import StatePool
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.engine.swap_space import SwapSpace
from sparkinfer.engine.torch_model_runner import TorchModelRunner
from sparkinfer.model.forward_batch import ForwardBatch
from sparkinfer.model.registry import Model, load_model
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams

CPU = torch.device("cpu")
CHECKPOINT = Path(__file__).parent.parent / "data" / "golden" / "qwen35.gguf"
BLOCK_SIZE = 4
MAX_NUM_SEQS = 4
NUM_BLOCKS = 26


@pytest.fixture(scope="module")
def model() -> Model:
    gguf = GGUFFile.open(CHECKPOINT)
    return load_model(gguf, HParams.from_gguf(gguf), CPU, lambda done, total: None)


class Collected:
    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[float]] = {}

    def publish(self, events: StepEvents) -> None:
        for sequence, token_id, logprobs in zip(events.sequences, events.token_ids, events.logprobs or ()):
            self.tokens.setdefault(sequence.request_id, []).append(token_id)
            self.logprobs.setdefault(sequence.request_id, []).append(logprobs.logprob)


def logits_in_one_piece(model: Model, tokens: list[int]) -> torch.Tensor:
    """[num_tokens, vocab_size]"""
    count = len(tokens)
    num_blocks = -(-count // BLOCK_SIZE)
    batch = ForwardBatch(
        input_ids=torch.tensor(tokens),
        positions=torch.arange(count),
        cu_seqlens_q=torch.tensor([0, count], dtype=torch.int32),
        context_lens=torch.tensor([count], dtype=torch.int32),
        slot_mapping=torch.arange(count),
        block_tables=torch.arange(num_blocks, dtype=torch.int32)[None],
        state_slots=torch.tensor([0]),
        logits_indices=torch.arange(count),
        query_lens=[count],
        context_lens_cpu=[count],
    )
    with torch.inference_mode():
        kv_cache = KVCache(model.hparams, num_blocks, BLOCK_SIZE, torch.float32, CPU)
        return model.forward(batch, kv_cache, StatePool(model.hparams, 1, CPU))


@pytest.mark.parametrize("swap_bytes", [0, 1 << 20])
def test_mixed_chunked_and_preempted_sequences_follow_the_model(model, swap_bytes):
    """Tokens are greedy up to rounding, and their logprobs those of the model, whatever ran beside them."""
    vocab_size = model.hparams.vocab_size
    runner = TorchModelRunner(
        model,
        KVCache(model.hparams, NUM_BLOCKS, BLOCK_SIZE, torch.float32, CPU),
        StatePool(model.hparams, MAX_NUM_SEQS, CPU),
        MAX_NUM_SEQS,
        model.hparams.max_position,
        CPU,
    )
    config = SchedulerConfig(max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=14, prefill_chunk_tokens=7)
    cache = CacheManager(BlockManager(NUM_BLOCKS, BLOCK_SIZE), swap_space=SwapSpace(swap_bytes, 1, 1))
    scheduler = Scheduler(config, cache, model.hparams.max_position)
    sink = Collected()
    engine = Engine(scheduler, runner, sink)
    rng = np.random.default_rng(11)
    prompts = [rng.integers(0, vocab_size, length).tolist() for length in (1, 23, 9, 30, 4, 17)]
    sampling = SamplingParams(max_tokens=24, temperature=0.0, logprobs=0)
    for request_id, prompt in enumerate(prompts):
        engine.submit(RequestId(request_id), 0, prompt, sampling)
        engine.step()
    while engine.has_work:
        engine.step()
    engine.close()
    assert scheduler.num_preemptions > 0
    assert (scheduler.num_swap_outs > 0) == (swap_bytes > 0)
    for request_id, prompt in enumerate(prompts):
        output = sink.tokens[request_id]
        assert len(output) == 24
        logprobs = logits_in_one_piece(model, prompt + output)[len(prompt) - 1 : -1].log_softmax(dim=-1)
        chosen = logprobs.gather(1, torch.tensor(output)[:, None])[:, 0]
        torch.testing.assert_close(chosen, torch.tensor(sink.logprobs[request_id]), atol=1e-3, rtol=0)
        torch.testing.assert_close(chosen, logprobs.amax(dim=-1), atol=1e-3, rtol=0)

"""Draws by digits equal draws by sorting, filter by filter, and the engine's own."""

from __future__ import annotations

import numpy as np
import torch

from kernels.draw_tokens import CHUNK, DrawFilters, draw_tokens
from kernels.reference import draw_tokens as reference
from sparkinfer.engine.cuda_draw import draw
from sparkinfer.engine.sampler import Sampler
from sparkinfer.engine.sampling_batch import SamplingSlots
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence
from sparkinfer.sampling_params import SamplingParams

CPU = torch.device("cpu")
VOCAB = CHUNK + 300  # two programs a row


def _logits(num_rows: int) -> torch.Tensor:
    logits = torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(5)) * 3
    logits[:, 7] = logits[:, 11] = logits.amax(-1) - 0.5  # equals near the top
    logits[:, 20:40] = 0.0
    logits[:, 30] = -0.0
    logits[:, 60:70] = -torch.inf
    return logits


def _expected(logits: torch.Tensor, key: int, top_k: int, top_p: float, min_p: float) -> int:
    kept = reference.keep(logits, top_k, top_p, min_p)
    noisy = logits.double() + reference.gumbel(key, torch.arange(VOCAB))
    return int(noisy.masked_fill(~kept, -torch.inf).argmax())


def test_each_filter_keeps_what_sorting_keeps() -> None:
    rows = [(20, 0.95, 0.0), (0, 0.8, 0.0), (2, 1.0, 0.0), (0, 1.0, 0.2), (VOCAB + 5, 0.999, 0.0), (0, 1.0, 0.0)]
    top_k, top_p, min_p = (torch.tensor(column) for column in zip(*rows))
    logits = _logits(len(rows))
    temperature = torch.tensor([0.7, 1.3, 5.0, 1.0, 2.0, 0.9])
    keys = torch.randint(-(2**31), 2**31, (2, len(rows)), generator=torch.Generator().manual_seed(1)).int()
    filters = DrawFilters(top_k, top_p, min_p.log(), has_top_k=True, has_top_p=True)
    ids = draw_tokens(logits, temperature, keys, filters)
    for row, controls in enumerate(rows):
        low, high = (int(half) & 0xFFFFFFFF for half in keys[:, row])
        assert int(ids[row]) == _expected(logits[row] / temperature[row], low | high << 32, *controls), controls


def test_a_cutoff_between_equals_keeps_them_all() -> None:
    """top_k 2 with three tokens sharing second place: all four win sometimes, and nobody else."""
    logits = torch.zeros(24, 50)
    logits[:, 3] = 4.0
    logits[:, [10, 20, 30]] = 3.5
    keys = torch.randint(-(2**31), 2**31, (2, 24), generator=torch.Generator().manual_seed(2)).int()
    ones = torch.ones(24)
    filters = DrawFilters(torch.full((24,), 2), ones, torch.zeros(24).log(), has_top_k=True, has_top_p=False)
    assert set(draw_tokens(logits, ones, keys, filters).tolist()) == {3, 10, 20, 30}


def test_a_row_draws_the_same_alone() -> None:
    logits, temperature = _logits(3), torch.tensor([1.0, 2.0, 3.0])
    keys = torch.tensor([[1, -2, 3], [4, 5, -6]], dtype=torch.int32)
    together = draw_tokens(logits, temperature, keys, None)
    alone = draw_tokens(logits[1:2].contiguous(), temperature[1:2], keys[:, 1:2].contiguous(), None)
    assert torch.equal(together[1:2], alone)


def test_rows_of_nan_give_some_token() -> None:
    logits = torch.full((1, 50), torch.nan)
    filters = DrawFilters(torch.tensor([5]), torch.tensor([0.5]), torch.tensor([-3.0]), has_top_k=True, has_top_p=True)
    ids = draw_tokens(logits, torch.ones(1), torch.zeros(2, 1, dtype=torch.int32), filters)
    assert 0 <= int(ids[0]) < 50


def test_the_engine_draws_with_it_what_it_draws_without() -> None:
    controls = [
        {"temperature": 0.0, "logprobs": 2}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 20, "top_p": 0.95},
        {"top_p": 0.9, "min_p": 0.01}, {"temperature": 0.8, "top_k": 3, "repetition_penalty": 1.2},
    ]
    logits = torch.from_numpy(np.random.default_rng(3).normal(0, 3, (len(controls), 600)).astype(np.float32))
    tokens = []
    for draw_rows in (draw, None):
        slots, sampler = SamplingSlots(len(controls), CPU), Sampler(600, CPU, draw_rows)
        for slot, chosen in enumerate(controls):
            slots.admit(slot, Admission(SamplingParams(max_tokens=9, seed=slot, **chosen), [1, 2, 3], ()))
        rows = [[ScheduledSequence(None, slot, at, 1, None, 0, (), True) for slot in range(5)] for at in range(3)]
        tokens.append([sampler.sample(logits, slots.build(step)).token_ids.tolist() for step in rows])
    assert tokens[0] == tokens[1]

"""Packed sequences, cut anywhere, against the sum over taps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.reference.causal_conv1d import causal_conv1d, conv_plan

CHANNELS, KERNEL = 6, 4
CPU = torch.device("cpu")


def direct(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One whole sequence [num_tokens, channels], zeros before it."""
    out = torch.zeros_like(x)
    for t in range(len(x)):
        for tap in range(KERNEL):
            if t - KERNEL + 1 + tap >= 0:
                out[t] += weight[:, tap] * x[t - KERNEL + 1 + tap]
    return F.silu(out)


@pytest.mark.parametrize("steps", [[[9, 5]], [[1, 1], [1, 1], [2, 1], [5, 2]], [[3, 1], [1, 4], [5, 0]]])
def test_carried_columns_join_the_steps(steps: list[list[int]]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(CHANNELS, KERNEL, generator=generator)
    lengths = [sum(step[seq] for step in steps) for seq in (0, 1)]
    sequences = [torch.randn(length, CHANNELS, generator=generator) for length in lengths]
    pool = torch.zeros(5, CHANNELS, KERNEL - 1)
    pool[[0, 1, 4]] = 3.0
    done, got = [0, 0], ([], [])
    for step in steps:
        active = [seq for seq in (0, 1) if step[seq]]
        query_lens = [step[seq] for seq in active]
        x = torch.cat([sequences[seq][done[seq] : done[seq] + step[seq]] for seq in active])
        slots = torch.tensor([(3, 2)[seq] for seq in active])
        out = causal_conv1d(x, weight, pool, slots, conv_plan(query_lens, KERNEL, CPU))
        for seq, rows in zip(active, out.split(query_lens), strict=True):
            got[seq].append(rows)
            done[seq] += step[seq]
    for seq in (0, 1):
        torch.testing.assert_close(torch.cat(got[seq]), direct(sequences[seq], weight), rtol=0, atol=1e-5)
    assert (pool[[0, 1, 4]] == 3.0).all()

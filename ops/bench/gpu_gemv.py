"""Checks and times the quantised matrix-vector kernel over formats, shapes and tiles on the card that is there.

    python -m ops.bench.gpu_gemv
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from kernels.launch import RowTile, row_tile
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight
from kernels.quant_gemv import quant_gemv
from kernels.reference import quant_gemv as reference
from ops.bench.gpu_timing import rotated_us
from sparkinfer.bench.bandwidth import copy_bandwidth
from tests.kernels.random_weights import random_weight

EPS = 1e-6
SHAPES = [  # format, rows, cols, token counts
    (QuantFormat.Q8_0, 12288, 2048, (1, 4, 8)),
    (QuantFormat.Q8_0, 2048, 4096, (1, 4)),
    (QuantFormat.Q4_K, 17408, 5120, (1, 2, 4, 8)),
    (QuantFormat.Q4_K, 5120, 17408, (1,)),
    (QuantFormat.Q6_K, 248320, 2048, (1, 8)),
    (QuantFormat.Q5_K, 8192, 2048, (1,)),
    (QuantFormat.IQ4_XS, 17408, 5120, (1,)),
    (QuantFormat.F32, 256, 2048, (1,)),
]
TILES = [(4, 1, 4), (4, 2, 2), (4, 2, 4), (4, 4, 2), (8, 1, 4), (8, 2, 4), (4, 1, 8)]  # warps, rows a thread, depth


def activation(num_tokens: int, num_cols: int) -> QuantActivation:
    x = torch.randn(num_tokens, num_cols, device="cuda")
    return reference.quantize_rows(x, torch.rand(num_cols, device="cuda") + 0.5)


def tiles(kind: QuantFormat, num_cols: int, num_tokens: int) -> list[RowTile]:
    found = [row_tile(kind, num_cols, *tile) for tile in TILES if num_tokens * tile[1] <= 16]
    return list(dict.fromkeys(found))


def compile_one(job: tuple[QuantFormat, int, int, RowTile]) -> str:
    """Fill the on-disk cache and check the result on a small matrix."""
    kind, num_cols, num_tokens, tile = job
    weight = random_weight(64, num_cols, kind, device="cuda", seed=1)
    x = activation(num_tokens, num_cols)
    out = torch.full((num_tokens, 64), torch.nan, device="cuda")
    quant_gemv(x, [weight], EPS, out=out, tile=tile)
    expected = reference.quant_gemv(x, [weight], EPS)
    error = float((out - expected).norm() / expected.norm())
    return "" if error < 1e-5 else f"{kind.name} cols {num_cols} tokens {num_tokens} {tile}: relative error {error}"


def timed(weights: list[QuantWeight], x: QuantActivation, tile: RowTile) -> float:
    out = torch.empty(x.num_tokens, weights[0].num_rows, device="cuda")
    return rotated_us([lambda w=w: quant_gemv(x, [w], EPS, out=out, tile=tile) for w in weights])


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    jobs = [(k, c, m, t) for k, _, c, ms in SHAPES for m in ms for t in tiles(k, c, m)]
    with ProcessPoolExecutor(14, mp_context=get_context("spawn")) as pool:
        wrong = [message for message in pool.map(compile_one, jobs) if message]
    print(f"{len(jobs)} variants checked, {len(wrong)} wrong", *wrong, sep="\n", flush=True)
    if wrong:
        sys.exit(1)
    bandwidth = copy_bandwidth(torch.device("cuda"))
    print(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e12:.2f} TB/s")
    for kind, rows, cols, token_counts in SHAPES:
        first = random_weight(rows, cols, kind, device="cuda")
        copies = max(2, min(24, int(4e8 // first.num_bytes)))
        weights = [first, *(random_weight(rows, cols, kind, device="cuda", seed=i) for i in range(1, copies))]
        for num_tokens in token_counts:
            x = activation(num_tokens, cols)
            times = {tile: timed(weights, x, tile) for tile in tiles(kind, cols, num_tokens)}
            bound = first.num_bytes / bandwidth * 1e6
            row = "  ".join(f"w{t.num_warps}r{t.rows_per_thread}u{t.depth} {us:.1f}" for t, us in times.items())
            best = min(times.values())
            print(f"{kind.name} {rows}x{cols} m{num_tokens}: best {best:.1f} us = {bound / best:.0%} | {row}",
                  flush=True)


if __name__ == "__main__":
    main()

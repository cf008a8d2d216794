"""Checks, then times, products of 16 rows and more on the card that is there, beside the kernels for eight rows.

    python -m ops.bench.gpu_many_rows [--variants]

--variants also times other numbers of buffers and parts, and the form for cards without wgmma.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import torch
import triton

from kernels import many_rows as module
from kernels.many_rows import ROWS, best_parts, bulk_copies, num_splits, pairs, registers
from kernels.pack_halves import pack_halves
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight
from kernels.quant_gemv import quant_gemv
from kernels.reference.quant_gemv import dequantize_rows, rms_factor
from kernels.reference.quant_weight import dequantize
from kernels.split_sums import add_parts
from kernels.unpack_halves import WEIGHT_SCALE
from ops.bench.gpu_timing import rotated_us
from sparkinfer.bench.bandwidth import copy_bandwidth
from tests.kernels.activations import random_activation, relative_error
from tests.kernels.random_weights import random_weight

EPS = 1e-6
CHECK_COLS, CHECK_ROWS = 1536, 200
SHAPES = [
    (QuantFormat.Q4_K, 17408, 5120), (QuantFormat.Q4_K, 5120, 17408), (QuantFormat.Q6_K, 10240, 5120),
    (QuantFormat.Q8_0, 12288, 2048), (QuantFormat.Q8_0, 2048, 4096), (QuantFormat.Q6_K, 248320, 2048),
]


@dataclass(frozen=True)
class Variant:
    """One compilation of the kernel."""

    kind: QuantFormat
    num_cols: int
    num_tokens: int
    splits: int
    has_wgmma: bool = True
    more_pairs: int = 0  # of buffers


def launch(variant: Variant, x: torch.Tensor, weight: QuantWeight, out: torch.Tensor) -> None:
    num_tokens, is_bulk = variant.num_tokens, variant.has_wgmma
    module._many_rows_kernel[(triton.cdiv(weight.num_rows, ROWS), variant.splits)](
        weight.quants, weight.high, weight.scales, weight.supers, weight.num_rows, bulk_copies(x) if is_bulk else x,
        out, out.stride(1), out.stride(0), 1.0 / WEIGHT_SCALE, FMT=int(variant.kind), COLS=variant.num_cols,
        M=num_tokens, PAIRS=pairs(num_tokens, is_bulk) + variant.more_pairs, FEW=weight.num_rows < ROWS,
        HAS_WGMMA=is_bulk, PDL=False, num_warps=4, maxnreg=registers(variant.kind, num_tokens) if is_bulk else None,
    )


def checks(has_wgmma: bool) -> list[Variant]:
    forms = [True, False] if has_wgmma else [False]
    return [
        Variant(kind, CHECK_COLS, num_tokens, 3, form)
        for form in forms for kind in module.FORMATS for num_tokens in (16, 64)
    ]


def timed(kind: QuantFormat, rows: int, cols: int, has_wgmma: bool, with_variants: bool) -> list[Variant]:
    found = [Variant(kind, cols, num_tokens, best_parts(kind, rows, cols, num_tokens), has_wgmma)
             for num_tokens in (16, 32, 64, 128)]
    splits = best_parts(kind, rows, cols, 64)
    if with_variants:
        found += [Variant(kind, cols, 64, splits, has_wgmma, more_pairs=1)]
        found += [Variant(kind, cols, 64, parts, has_wgmma) for parts in (1, 2, 3, 4, 6)]
        found += [Variant(kind, cols, num_tokens, splits, has_wgmma=False) for num_tokens in (16, 64)]
    return list(dict.fromkeys(found))


def compile_one(variant: Variant) -> str:
    """Fill the on-disk cache."""
    weight = random_weight(ROWS, variant.num_cols, variant.kind, "cuda")
    x = torch.zeros(variant.num_tokens, variant.num_cols, dtype=torch.float16, device="cuda")
    out = torch.empty(variant.splits, variant.num_tokens, ROWS, device="cuda")
    try:
        launch(variant, x, weight, out)
        torch.cuda.synchronize()
    except RuntimeError as error:
        return f"{variant}: {error}"
    return ""


def first_rows(x: QuantActivation, count: int) -> QuantActivation:
    planes = (x.values, x.scales, x.sums, x.plain, x.square_sums)
    return QuantActivation(*(None if plane is None else plane[:count].contiguous() for plane in planes))


def check(variant: Variant, first: dict[object, torch.Tensor]) -> str:
    """A line that ends in ok or RED; first: the first 16 rows' bits by format and form."""
    weight = random_weight(CHECK_ROWS, CHECK_COLS, variant.kind, "cuda", seed=3)
    x = first_rows(random_activation(64, CHECK_COLS, "cuda", seed=1), variant.num_tokens)
    out = torch.full((variant.splits, variant.num_tokens, CHECK_ROWS), torch.nan, device="cuda")
    launch(variant, pack_halves(x, CHECK_COLS, EPS), weight, out)
    error = relative_error(out.sum(0), dequantize_rows(x) * rms_factor(x, EPS) @ dequantize(weight).T)
    some = out[:, :16].clone()
    is_same = torch.equal(first.setdefault((variant.kind, variant.has_wgmma), some), some)
    verdict = "ok" if error < 1e-3 and is_same else "RED"
    form = "wgmma" if variant.has_wgmma else "mma_v2"
    return f"{variant.kind.name} {variant.num_tokens} rows, {form}: error {error:.1e}, same bits {is_same} {verdict}"


def time_shape(kind: QuantFormat, rows: int, cols: int, variants: list[Variant], bandwidth: float) -> None:
    weights = [random_weight(rows, cols, kind, "cuda", seed=seed) for seed in range(2 if rows > 100_000 else 6)]
    eight, out = random_activation(8, cols, "cuda"), torch.empty(8, rows, device="cuda")

    def all_of(function: Callable[[QuantWeight], object]) -> float:
        return rotated_us([lambda weight=weight: function(weight) for weight in weights])

    bound = weights[0].num_bytes / bandwidth * 1e6
    print(f"{kind.name} {rows} x {cols}: bound {bound:.1f} us, 8 rows "
          f"{all_of(lambda weight: quant_gemv(eight, [weight], EPS, out=out)):.1f} us", flush=True)
    for variant in variants:
        packed = pack_halves(random_activation(variant.num_tokens, cols, "cuda"), cols, EPS)
        parts = torch.empty(variant.splits, variant.num_tokens, rows, device="cuda")
        us = all_of(lambda weight, v=variant, p=packed, q=parts: launch(v, p, weight, q))
        tflops = 2 * variant.num_tokens * rows * cols / us / 1e6
        buffers = 2 * (pairs(variant.num_tokens, variant.has_wgmma) + variant.more_pairs)
        print(f"  {variant.num_tokens} rows, {variant.splits} parts, {buffers} buffers, "
              f"{'wgmma' if variant.has_wgmma else 'mma_v2'}: {us:.1f} us, {tflops:.0f} TFLOP/s", flush=True)
    x, result = random_activation(64, cols, "cuda"), torch.empty(64, rows, device="cuda")
    parts = torch.empty(num_splits(weights[0], 64), 64, rows, device="cuda")

    def whole(weight: QuantWeight) -> None:
        module.many_rows(pack_halves(x, cols, EPS), weight, parts)
        add_parts(parts, result)

    print(f"  64 rows with packing and sum: {all_of(whole):.1f} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", action="store_true")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    has_wgmma = torch.cuda.get_device_capability()[0] == 9
    by_shape = {shape: timed(*shape, has_wgmma, arguments.variants) for shape in SHAPES}
    jobs = list(dict.fromkeys([*checks(has_wgmma), *(variant for some in by_shape.values() for variant in some)]))
    with ProcessPoolExecutor(14, mp_context=get_context("spawn")) as pool:
        wrong = [message for message in pool.map(compile_one, jobs) if message]
    print(f"{len(jobs)} variants compiled, {len(wrong)} failed", *wrong[:8], sep="\n", flush=True)
    first: dict[object, torch.Tensor] = {}
    lines = [check(variant, first) for variant in checks(has_wgmma)]
    print(*lines, sep="\n", flush=True)
    if wrong or any(line.endswith("RED") for line in lines):
        sys.exit("a check is red: no speeds")
    bandwidth = copy_bandwidth(torch.device("cuda"))
    print(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e12:.2f} TB/s", flush=True)
    for shape, variants in by_shape.items():
        time_shape(*shape, variants, bandwidth)


if __name__ == "__main__":
    main()

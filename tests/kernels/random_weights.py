"""Random ggml blocks with sane scales, for tests and benchmarks of quantised kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant_format import QuantFormat, QuantWeight
from kernels.repack import BLOCK_SHAPE, FLOATS, repack

# format -> byte offsets of the f16 fields of a block; a second one is what is taken away (Q4_K, Q5_K) or added
_HALF_FIELDS = {
    QuantFormat.Q4_0: (0,), QuantFormat.Q4_1: (0, 2), QuantFormat.Q5_0: (0,), QuantFormat.Q5_1: (0, 2),
    QuantFormat.Q8_0: (0,), QuantFormat.Q4_K: (0, 2), QuantFormat.Q5_K: (0, 2), QuantFormat.Q6_K: (208,),
    QuantFormat.IQ4_NL: (0,), QuantFormat.IQ4_XS: (0,), QuantFormat.MXFP4: (), QuantFormat.NVFP4: (),
}

# half the largest number: what the second field is of the first, more or less, as in matrices of models. Without it
# all weights lean to one side, products are sums of hundreds, and SiLU makes either nothing or everything of a row.
_OFFSETS = {
    QuantFormat.Q4_1: -7.5, QuantFormat.Q5_1: -15.5, QuantFormat.Q4_K: 7.5, QuantFormat.Q5_K: 15.5,
}


def random_blocks(num_rows: int, num_cols: int, kind: QuantFormat, device: str = "cpu", seed: int = 0) -> Tensor:
    """[num_rows, row_bytes] uint8 blocks of `kind` whose dequantised values are of order 0.01 to 1, of mean 0."""
    generator = torch.Generator(device=device).manual_seed(seed)
    if kind.is_float:
        values = torch.randn(num_rows, num_cols, generator=generator, device=device)
        return values.to(FLOATS[kind]).view(torch.uint8)
    elements, block_bytes = BLOCK_SHAPE[kind]
    shape = (num_rows, num_cols // elements, block_bytes)
    blocks = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator, device=device)
    d = torch.rand(*shape[:2], 1, generator=generator, device=device) * 0.002 + 0.0005
    offset = _OFFSETS.get(kind, 0.0) * d * (torch.rand(*d.shape, generator=generator, device=device) * 0.4 + 0.8)
    for place, value in zip(_HALF_FIELDS[kind], (d, offset), strict=False):
        blocks[..., place : place + 2] = value.half().view(torch.uint8)
    if kind == QuantFormat.MXFP4:
        blocks[..., 0] = 118 + blocks[..., 0] % 6
    if kind == QuantFormat.NVFP4:
        blocks[..., :4] = 8 + blocks[..., :4] % 32
    return blocks.reshape(num_rows, -1)


def random_weight(num_rows: int, num_cols: int, kind: QuantFormat, device: str = "cpu", seed: int = 0) -> QuantWeight:
    return repack(random_blocks(num_rows, num_cols, kind, device, seed), kind)

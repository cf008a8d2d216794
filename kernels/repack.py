"""Rows of ggml blocks -> planes that a kernel reads 16 bytes at a time; same values, 0 to 2.8 % more bytes.

Plain torch, so it runs where the bytes are (host or device), once, at load. Knows nothing of files or tensor names.

Nibble order: word w (0..3) of a block of 32 holds in byte j the element 4w + j (low nibble) and 16 + 4w + j (high), so
that four masked words are four dp4a operands for elements 0..15 and four for 16..31.
Fifth bits: bit g of byte j of a block's word belongs to element 4g + j. Two-bit pairs: bits 2w of byte j of word h
belong to element 16h + 4w + j.
Inverse: kernels/reference/quant_weight.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.quant_format import QuantFormat, QuantWeight

# format -> (elements, bytes) of a ggml block
BLOCK_SHAPE: dict[QuantFormat, tuple[int, int]] = {
    QuantFormat.F32: (1, 4), QuantFormat.Q4_0: (32, 18), QuantFormat.Q4_1: (32, 20), QuantFormat.Q5_0: (32, 22),
    QuantFormat.Q5_1: (32, 24), QuantFormat.Q8_0: (32, 34), QuantFormat.Q4_K: (256, 144), QuantFormat.Q5_K: (256, 176),
    QuantFormat.Q6_K: (256, 210), QuantFormat.IQ4_NL: (32, 18), QuantFormat.IQ4_XS: (256, 136),
    QuantFormat.MXFP4: (32, 17), QuantFormat.NVFP4: (64, 36), QuantFormat.F16: (1, 2), QuantFormat.BF16: (1, 2),
}


def repack(raw: Tensor, quant_format: QuantFormat) -> QuantWeight:
    """Planes of a tensor stored as ggml blocks.

    raw:  [num_rows, row_bytes] uint8, whole blocks, any device; the planes land on the same device
    """
    elements, block_bytes = BLOCK_SHAPE[quant_format]
    num_rows, row_bytes = raw.shape
    if row_bytes % block_bytes:
        raise ValueError(f"a row of {row_bytes} bytes is not whole {quant_format.name} blocks of {block_bytes} bytes")
    num_cols = row_bytes // block_bytes * elements
    if num_cols % 32:
        raise ValueError(f"{num_cols} columns are not a multiple of 32")
    if quant_format.is_float:
        quants = raw.contiguous().view(FLOATS[quant_format])
        return QuantWeight(quant_format, num_rows, num_cols, quants, quants, quants, quants, quants)
    blocks = raw.reshape(num_rows, -1, block_bytes)
    planes = _SPLIT[quant_format](blocks)
    quants, high, scales, supers = (None if plane is None else plane.reshape(num_rows,
                                                                             -1).contiguous() for plane in planes)
    assert quants is not None
    kept = [quants if plane is None else plane for plane in (quants, high, scales, supers)]
    return QuantWeight(quant_format, num_rows, num_cols, *kept, scale_powers(quant_format, *kept[2:]))


def concat_rows(weights: list[QuantWeight]) -> QuantWeight:
    """One matrix whose rows are those of `weights` end to end; formats and widths must agree."""
    first = weights[0]
    if any(w.format != first.format or w.num_cols != first.num_cols for w in weights):
        raise ValueError("only matrices of one format and width can be joined")
    joined = [torch.cat([getattr(w, name) for w in weights]) for name in _PLANES]
    return _with_planes(first, joined)


def select_rows(weight: QuantWeight, rows: Tensor | slice) -> QuantWeight:
    """The matrix that has rows `rows` ([num_selected] int64, or some that follow each other) of `weight`, in order."""
    return _with_planes(weight, [getattr(weight, name)[rows] for name in _PLANES])


def _with_planes(weight: QuantWeight, planes: list[Tensor]) -> QuantWeight:
    dummies = [getattr(weight, name) is weight.quants for name in _PLANES]
    kept = [planes[0] if is_dummy else plane for plane, is_dummy in zip(planes, dummies, strict=True)]
    return QuantWeight(weight.format, kept[0].shape[0], weight.num_cols, *kept)


def scale_powers(kind: QuantFormat, scales: Tensor, supers: Tensor) -> Tensor:
    """`QuantWeight.powers`: the largest ones, up to 2^MOST_EXPONENT, with which a row's scales, and 2^-14 of what is
    added to scaled quants (`unpack_halves` goes through it), stay within f16."""
    added = torch.zeros((), device=scales.device)
    if kind in (QuantFormat.Q4_K, QuantFormat.Q5_K):
        size, added = (63 * x for x in _largest_of_pair(supers))
    elif kind in (QuantFormat.Q4_1, QuantFormat.Q5_1):
        size, added = _largest_of_pair(scales)
    elif kind == QuantFormat.Q6_K:
        size = 128 * _largest(supers)
    elif kind == QuantFormat.IQ4_XS:
        size = 32 * _largest(supers)
    elif kind == QuantFormat.MXFP4:
        size = torch.exp2(_largest(scales) - 128)  # of twice the values
    elif kind == QuantFormat.NVFP4:
        sizes = scales.view(torch.uint8) & 0x7F  # E4M3, in order; the last one stands for 0
        largest = torch.where(sizes == 0x7F, 0, sizes).amax(dim=1)
        size = 0.5 * largest.view(torch.float8_e4m3fn).float() * supers.flatten().abs()  # of twice the values
    else:
        size = _largest(scales)
    bound = torch.maximum(size, added * 2.0**-14)
    exponents = torch.frexp(F16_MAX / bound)[1] - 1
    exponents = torch.where(bound > 0, exponents, MOST_EXPONENT).clamp(0, MOST_EXPONENT)
    return torch.where(bound.isfinite(), torch.exp2(exponents.float()), 1.0)


def _largest(plane: Tensor) -> Tensor:
    return plane.abs().amax(dim=1).float()


def _largest_of_pair(plane: Tensor) -> tuple[Tensor, Tensor]:
    """Of an int32 plane's low halves and of its high ones."""
    low, high = plane.view(torch.float16).unflatten(-1, (-1, 2)).abs().amax(dim=1).float().unbind(1)
    return low, high


MOST_EXPONENT = 27  # whose powers unpack_halves knows
F16_MAX = 65504.0
FLOATS = {QuantFormat.F32: torch.float32, QuantFormat.F16: torch.float16, QuantFormat.BF16: torch.bfloat16}
_PLANES = ("quants", "high", "scales", "supers", "powers")
_Planes = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def _view(block_bytes: Tensor, dtype: torch.dtype) -> Tensor:
    return block_bytes.contiguous().view(dtype)


def _nibble_words(q: Tensor) -> Tensor:
    """q: [..., 32] uint8 below 16 -> [..., 4] int32."""
    return _view(q[..., :16] | (q[..., 16:] << 4), torch.int32)


def _fifth_bit_word(bits: Tensor) -> Tensor:
    """bits: [..., 32] uint8 of 0 or 1 -> [..., 1] int32."""
    grouped = bits.reshape(*bits.shape[:-1], 8, 4)
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)[:, None]
    return _view((grouped << shifts).sum(-2, dtype=torch.uint8), torch.int32)


def _two_bit_words(pairs: Tensor) -> Tensor:
    """pairs: [..., 32] uint8 below 4 -> [..., 2] int32."""
    grouped = pairs.reshape(*pairs.shape[:-1], 2, 4, 4)
    shifts = 2 * torch.arange(4, dtype=torch.uint8, device=pairs.device)[:, None]
    return _view((grouped << shifts).sum(-2, dtype=torch.uint8).flatten(-2), torch.int32)


def _bits_of_word(block_bytes: Tensor) -> Tensor:
    """[..., n] uint8 -> [..., 8 n] bits, lowest first."""
    shifts = torch.arange(8, dtype=torch.uint8, device=block_bytes.device)
    return ((block_bytes[..., None] >> shifts) & 1).flatten(-2)


def _halves(qs: Tensor) -> Tensor:
    """[..., n] bytes -> [..., 2 n]: all low nibbles, then all high ones."""
    return torch.cat([qs & 15, qs >> 4], dim=-1)


def _k_sub_blocks(qs: Tensor) -> Tensor:
    """Q4_K's 128 bytes -> nibbles [..., 8 sub-blocks, 32]."""
    return _halves(qs.reshape(*qs.shape[:-1], 4, 32)).reshape(*qs.shape[:-1], 8, 32)


def _k_scales(x: Tensor) -> Tensor:
    """The 12 bytes of 6-bit scales and minimums -> [..., 8] int16 of bytes scale | minimum."""
    low, mid, top = x[..., 0:4], x[..., 4:8], x[..., 8:12]
    scale = torch.cat([low & 63, (top & 15) | ((low >> 6) << 4)], dim=-1)
    minimum = torch.cat([mid & 63, (top >> 4) | ((mid >> 6) << 4)], dim=-1)
    return _view(torch.stack([scale, minimum], dim=-1), torch.int16)


def _split_q8_0(b: Tensor) -> _Planes:
    return _view(b[..., 2:34], torch.int32), None, _view(b[..., 0:2], torch.float16), None


def _split_q4_0(b: Tensor) -> _Planes:
    return _view(b[..., 2:18], torch.int32), None, _view(b[..., 0:2], torch.float16), None


def _split_q4_1(b: Tensor) -> _Planes:
    return _view(b[..., 4:20], torch.int32), None, _view(b[..., 0:4], torch.int32), None


def _split_q5_0(b: Tensor) -> _Planes:
    high = _fifth_bit_word(_bits_of_word(b[..., 2:6]))
    return _view(b[..., 6:22], torch.int32), high, _view(b[..., 0:2], torch.float16), None


def _split_q5_1(b: Tensor) -> _Planes:
    high = _fifth_bit_word(_bits_of_word(b[..., 4:8]))
    return _view(b[..., 8:24], torch.int32), high, _view(b[..., 0:4], torch.int32), None


def _split_q4_k(b: Tensor) -> _Planes:
    quants = _nibble_words(_k_sub_blocks(b[..., 16:144]))
    return quants, None, _k_scales(b[..., 4:16]), _view(b[..., 0:4], torch.int32)


def _split_q5_k(b: Tensor) -> _Planes:
    quants = _nibble_words(_k_sub_blocks(b[..., 48:176]))
    shifts = torch.arange(8, dtype=torch.uint8, device=b.device)[:, None]
    high = _fifth_bit_word((b[..., 16:48][..., None, :] >> shifts) & 1)
    return quants, high, _k_scales(b[..., 4:16]), _view(b[..., 0:4], torch.int32)


def _split_q6_k(b: Tensor) -> _Planes:
    low = b[..., 0:128].reshape(*b.shape[:-1], 2, 2, 32)  # [.., n, g % 2, l]
    nibbles = torch.cat([low & 15, low >> 4], dim=-2).reshape(*b.shape[:-1], 8, 32)  # g = 2 * (g / 2) + g % 2
    shifts = 2 * torch.arange(4, dtype=torch.uint8, device=b.device)[:, None]
    pairs = (b[..., 128:192].reshape(*b.shape[:-1], 2, 1, 32) >> shifts) & 3
    high = _two_bit_words(pairs.reshape(*b.shape[:-1], 8, 32))
    return _nibble_words(nibbles), high, _view(b[..., 192:208], torch.int16), _view(b[..., 208:210], torch.float16)


def _split_iq4_xs(b: Tensor) -> _Planes:
    low = torch.stack([b[..., 4:8] & 15, b[..., 4:8] >> 4], dim=-1).flatten(-2)
    shifts = 2 * torch.arange(4, dtype=torch.uint8, device=b.device)
    high = ((b[..., 2:4][..., None] >> shifts) & 3).flatten(-2)
    scales = (low | (high << 4)).to(torch.int8) - 32
    return _view(b[..., 8:136], torch.int32), None, scales, _view(b[..., 0:2], torch.float16)


def _split_mxfp4(b: Tensor) -> _Planes:
    return _view(b[..., 1:17], torch.int32), None, b[..., 0:1], None


def _split_nvfp4(b: Tensor) -> _Planes:
    codes = _halves(b[..., 4:36].reshape(*b.shape[:-1], 4, 8)).reshape(*b.shape[:-1], 2, 32)
    ones = torch.ones(b.shape[0], 1, dtype=torch.float32, device=b.device)
    return _nibble_words(codes), None, _view(b[..., 0:4], torch.int16), ones


_SPLIT: dict[QuantFormat, Callable[[Tensor], _Planes]] = {
    QuantFormat.Q4_0: _split_q4_0, QuantFormat.Q4_1: _split_q4_1, QuantFormat.Q5_0: _split_q5_0,
    QuantFormat.Q5_1: _split_q5_1, QuantFormat.Q8_0: _split_q8_0, QuantFormat.Q4_K: _split_q4_k,
    QuantFormat.Q5_K: _split_q5_k, QuantFormat.Q6_K: _split_q6_k, QuantFormat.IQ4_NL: _split_q4_0,
    QuantFormat.IQ4_XS: _split_iq4_xs, QuantFormat.MXFP4: _split_mxfp4, QuantFormat.NVFP4: _split_nvfp4,
}

"""h = act(gate) * up, quantised, from rows that hold gate and up side by side; act is SiLU or GELU in its tanh form.

gelu_tanh(x) = x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3))).
Bytes moved: the rows once, 2.75 bytes an element of h.
Reference:   kernels/reference/gated_activation.py
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import quantize_blocks
from kernels.quant_format import QuantActivation


@triton.jit
def activate(x, GELU: tl.constexpr):
    """SiLU, or GELU in its tanh form."""
    inner = x
    if GELU:
        inner = 1.5957691216057308 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-inner))


@triton.jit
def _gated_activation_kernel(
    x_ptr, v_ptr, ys_ptr, ym_ptr, FFN: tl.constexpr, GELU: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr,
):
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    offs = tl.program_id(0) * BLOCKS * 16 + tl.arange(0, BLOCKS * 16)
    gate = tl.load(x_ptr + m * 2 * FFN + offs)
    h = activate(gate, GELU) * tl.load(x_ptr + m * 2 * FFN + FFN + offs)
    quantize_blocks(h, tl.program_id(0) * BLOCKS, v_ptr + m * 2 * FFN, ys_ptr + m * (FFN // 16),
                    ym_ptr + m * (FFN // 16), FFN, BLOCKS)


def gated_activation(gate_up: Tensor, out: QuantActivation, is_gelu: bool, pdl: bool = False) -> None:
    """The middle of a gated feed-forward layer.

    gate_up:  [num_tokens, 2 * ffn] f32, contiguous, gate first; ffn a multiple of 32
    out:      [num_tokens, ffn] values, scales and sums written
    """
    num_tokens, ffn = gate_up.shape[0], gate_up.shape[1] // 2
    blocks = min(16, ffn // 16 & -(ffn // 16))
    options = {"launch_pdl": True} if pdl else {}
    _gated_activation_kernel[(ffn // (16 * blocks), num_tokens)](
        gate_up, out.values, out.scales, out.sums, FFN=ffn, GELU=is_gelu, BLOCKS=blocks, PDL=pdl, **options,
    )

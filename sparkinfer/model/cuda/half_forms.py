"""An activation of a decode step with and without its rows of f16 numbers: who reads it decides.

Knows no layer; the kernel that makes the activation makes those rows, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kernels.few_rows import order
from kernels.quant_format import HalfRows, QuantActivation, QuantWeight


class HalfForms:
    """Forms of one activation, in the same planes: only the one that was made last is right. Factors and hints are one
    until a kernel writes them."""

    def __init__(self, x: QuantActivation) -> None:
        self._x = x
        self._half: HalfRows | None = None

    def read_by(self, weights: Sequence[QuantWeight], made_by: Sequence[QuantWeight] = ()) -> QuantActivation:
        """The activation for matrices that multiply it in one launch: with f16 rows where that launch takes them.

        made_by: matrices whose product, in one launch, makes the activation; if any, it must be of the same kind
        """
        is_wide = order(self._x.num_tokens, weights)
        if is_wide is None or (made_by and order(self._x.num_tokens, made_by) is None):
            return self._x
        if self._half is None:
            device = self._x.values.device
            values = torch.zeros(8, self._x.num_cols, dtype=torch.float16, device=device)
            self._half = HalfRows(values, torch.ones(8, device=device), torch.ones(8, device=device), is_wide)
        return replace(self._x, half=replace(self._half, is_wide=is_wide))

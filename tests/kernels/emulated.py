"""The Gluon kernels' contracts in plain torch, for tests of what surrounds them: Gluon does not run interpreted."""

from __future__ import annotations

import pytest
import torch

from kernels import projections
from kernels.quant_format import QuantWeight
from kernels.reference.pack_halves import fragment_order
from kernels.reference.quant_weight import dequantize
from kernels.sort_tokens import Runs
from sparkinfer.model.cuda import experts


def many_rows(
    x: torch.Tensor, weight: QuantWeight, out: torch.Tensor, pdl: bool = False, x_factor: float = 1.0
) -> None:
    """Parts of the columns, the activation's columns put back in order."""
    plain = in_order(x) / x_factor
    bounds = [weight.num_cols // 128 * split // len(out) * 128 for split in range(len(out) + 1)]
    values = dequantize(weight)
    for part, first, last in zip(out, bounds, bounds[1:], strict=False):
        part.copy_(plain[:, first:last] @ values[:, first:last].T)


def swiglu_rows(
    x: torch.Tensor, gate: QuantWeight, up: QuantWeight, factor: float, counts: torch.Tensor, pdl: bool = False
) -> torch.Tensor:
    plain = in_order(x)
    h = torch.nn.functional.silu(plain @ dequantize(gate).T) * (plain @ dequantize(up).T) * factor
    return h[:, fragment_order(gate.num_rows).to(x.device)].half()


def in_order(x: torch.Tensor) -> torch.Tensor:
    """f32, columns as the matrix has them."""
    plain = torch.empty(x.shape, device=x.device)
    plain[:, fragment_order(x.shape[1]).to(x.device)] = x.float()
    return plain


def _runs(runs: Runs) -> list[list[int]]:
    return runs.table[: int(runs.count)].tolist()


def expert_gate_up(
    x: torch.Tensor, gate: QuantWeight, up: QuantWeight, runs: Runs, top_k: int, num_experts: int, out: torch.Tensor,
    pdl: bool = False, factor: float = 1.0,
) -> None:
    gates, ups = (dequantize(w).view(num_experts, -1, w.num_cols) for w in (gate, up))
    plain, order = in_order(x), fragment_order(out.shape[1])
    for expert, first, count, _ in _runs(runs):
        rows = plain[runs.order[first : first + count].long() // top_k]
        h = torch.nn.functional.silu(rows @ gates[expert].T) * (rows @ ups[expert].T) * factor
        out[first : first + count] = h[:, order].half()


def expert_down(
    h: torch.Tensor, down: QuantWeight, runs: Runs, top_k: int, num_experts: int, out: torch.Tensor,
    pdl: bool = False, h_factor: float = 1.0,
) -> None:
    downs, plain = dequantize(down).view(num_experts, -1, down.num_cols), in_order(h) / h_factor
    for expert, first, count, _ in _runs(runs):
        pairs = runs.order[first : first + count].long()
        out[pairs] = (plain[first : first + count] @ downs[expert].T).to(out.dtype)


def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the emulations where the kernels are called."""
    monkeypatch.setattr(projections, "many_rows", many_rows)
    monkeypatch.setattr(projections.swiglu_rows, "swiglu_rows", swiglu_rows)
    monkeypatch.setattr(experts, "expert_gate_up", expert_gate_up)
    monkeypatch.setattr(experts, "expert_down", expert_down)

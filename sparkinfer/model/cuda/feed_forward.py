"""Feed-forward parts from their matrices: experts of one width, and the factors that keep what is between within f16.

Knows matrices of weights; never files.
"""

from __future__ import annotations

from torch import Tensor

from sparkinfer.model.cuda.expert_widths import Matrices, widened
from sparkinfer.model.cuda.half_factor import half_factor
from sparkinfer.model.cuda.tensor_reader import plain_weight
from sparkinfer.model.cuda.weights import DenseFFN, ExpertFFN


def dense_ffn(matrices: Matrices, norm: Tensor, is_gelu: bool) -> DenseFFN:
    """matrices: gate, up, down; norm: [hidden] f32, of the RMS norm before them."""
    gate, up, down = matrices
    return DenseFFN(gate, up, down, half_factor(gate, up, norm), is_gelu)


def expert_ffn(router: Tensor, routed: Matrices, shared: Matrices | None, top_k: int, norm: Tensor) -> ExpertFFN:
    """router: [num_experts, hidden] f32, with a shared expert its gate's row last; norm: as above.

    routed, shared: gate [num_experts * ffn, hidden], up, down [num_experts * hidden, ffn]; their widths may differ
    """
    num_experts, shared_factor = router.shape[0], 1.0
    if shared is not None:
        num_experts -= 1
        shared_factor = half_factor(shared[0], shared[1], norm)
        width = max(routed[2].num_cols, shared[2].num_cols)
        routed, shared = widened(routed, num_experts, width), widened(shared, 1, width)
    factor = half_factor(routed[0], routed[1], norm)
    return ExpertFFN(plain_weight(router), *routed, shared, top_k, factor, shared_factor)

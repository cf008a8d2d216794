"""The library's products are taken for the sizes at which their bits are `half_products`', and for no others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.half_products import half_products
from sparkinfer.model.cuda.row_products import RowProducts

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # the interpreter's loops
NUM_ROWS, NUM_COLS = 40, 96
WRONG = 32  # tokens for which the library below sums in another order


class Library:
    """Like the kernel but for one number of rows; notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        self.asked.append(len(x))
        half_products(x, weight, out)
        if len(x) == WRONG:
            out[-1, -1] += 1e-6 * out[-1, -1].abs() + 1e-6


@pytest.mark.parametrize(
    ("num_tokens", "asked"), [(1, []), (16, [16]), (20, [16]), (WRONG, []), (64, [64]), (80, [64, 16]), (131, [64, 64])]
)
def test_sizes(num_tokens: int, asked: list[int]) -> None:
    library = Library()
    products = RowProducts(library)
    for size in (16, WRONG, 64) if num_tokens != WRONG else (WRONG,):
        products.settle(size, {(NUM_ROWS, NUM_COLS)}, DEVICE)
    library.asked.clear()
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, NUM_COLS, generator=generator).half().to(DEVICE) for n in (num_tokens, NUM_ROWS))
    found, expected = products.product(x, weight), half_products(x, weight)
    if DEVICE.type == "cuda":
        assert torch.equal(found, expected)
    torch.testing.assert_close(found, expected)  # the interpreter's NumPy sums otherwise for another place of a row
    assert library.asked == asked
    other = torch.ones(8, NUM_COLS, dtype=torch.float16, device=DEVICE)
    assert torch.equal(products.product(x, other), half_products(x, other))
    assert library.asked == asked

"""The tree of named tensors that a model is: attribute paths are GGUF tensor names.

Knows names and shapes; never where the bytes come from.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.reference.numerics import FAST, Numerics

# The two parts of a block exist for the reader; GGUF names do not mention them (blk.3.attn_q, not blk.3.mixer.attn_q).
_UNNAMED_PARTS = ("mixer", "feed_forward")


def unloaded(*shape: int) -> Tensor:
    """A tensor still to be read from the checkpoint: it has a shape and no storage."""
    return torch.empty(shape, device="meta")


class Module:
    """A node of the tree: its attributes are tensors, modules, or lists of modules.

    numerics: how it computes; the same for all modules of a model
    """

    numerics: Numerics = FAST

    def unloaded_tensors(self, prefix: str = "") -> Iterator[tuple[str, Module, str]]:
        """(GGUF name, owning module, attribute) of every tensor that is still to be loaded."""
        for attribute, value in vars(self).items():
            name = prefix if attribute in _UNNAMED_PARTS else f"{prefix}{attribute}."
            if isinstance(value, Tensor) and value.is_meta:
                yield name.removesuffix("."), self, attribute
            for child_name, child in _children(name, value):
                yield from child.unloaded_tensors(child_name)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, parents first."""
        yield self
        for value in list(vars(self).values()):
            for _, child in _children("", value):
                yield from child.modules()

    def prepare(self) -> None:
        """Called once when every tensor of the model is loaded: derive what the forward pass wants."""


def _children(name: str, value: object) -> Iterator[tuple[str, Module]]:
    if isinstance(value, Module):
        yield name, value
    elif isinstance(value, list):
        yield from ((f"{name}{i}.", child) for i, child in enumerate(value) if isinstance(child, Module))

"""What [engine] prefill_dtype = "fp8" does to a model's probabilities, emulated in its float32 form on this machine: to
those of a text's own tokens, and to those of tokens behind it, as decode steps compute them. KL divergences, in nat.

    python -m ops.bench.fp8_quality MODEL.gguf --text README.md
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.fp8_products import BLOCK, rounded
from kernels.reference.numerics import FAST
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.model.linear import Linear
from sparkinfer.model.moe import MixtureOfExperts
from sparkinfer.model.transformer import Transformer
from sparkinfer.text.tokenizer import Tokenizer
from tests.model.driver import Driver, load


def fp8_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear of rounded numbers."""
    return F.linear(rounded(x, 1), rounded(weight, BLOCK), bias)


def dense_parts(model: Transformer) -> list[Linear]:
    """What prompts take dense products with: all matrices but the output head, routers and experts."""
    modules = list(model.modules())
    others = [module.ffn_gate_inp for module in modules if isinstance(module, MixtureOfExperts)] + [model.output]
    return [module for module in modules if isinstance(module, Linear) and module not in others]


def logprobs(model: Transformer, steps: list[list[int]], in_fp8: bool) -> Tensor:
    """[num_tokens, vocab_size] of one sequence; of its steps the first is in FP8, if any."""
    driver, parts, found = Driver(model, num_blocks=sum(map(len, steps)) // 16 + 2), dense_parts(model), []
    for step in steps:
        for part in parts:
            part.numerics = dataclasses.replace(FAST, linear=fp8_linear) if in_fp8 and not found else FAST
        found.append(driver.step({"only": step})["only"])
    return torch.log_softmax(torch.cat(found), -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, default=Path("README.md"))
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--behind", type=int, default=128, help="how many of them count as the answer")
    options = parser.parse_args()
    model = load(options.model)
    tokenizer = Tokenizer.from_metadata(GGUFFile.open(options.model).metadata, options.model)
    tokens = tokenizer.encode(options.text.read_text())[: options.tokens]
    steps = [tokens[: -options.behind], tokens[-options.behind :]]
    expected, found = logprobs(model, steps, False), logprobs(model, steps, True)
    divergence = (expected.exp() * (expected - found)).sum(-1)
    is_same = (expected.argmax(-1) == found.argmax(-1)).float()
    for name, kl, same in zip(("prompt", "answer"), divergence.split([*map(len, steps)]),
                              is_same.split([*map(len, steps)])):
        print(f"{name}: {len(kl)} tokens, mean {kl.mean():.2e}, median {kl.median():.2e}, largest {kl.max():.2e}, best "
              f"token the same {same.mean():.1%}")


if __name__ == "__main__":
    main()

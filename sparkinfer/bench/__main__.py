"""`python -m sparkinfer.bench -m MODEL`: how fast a model file computes prompts and decodes on this machine.

Runs the engine's ModelRunner in this process: no scheduler, no HTTP. A test is named as llama-bench names it: pp512 is
a prompt of 512 tokens, tg128 are 128 decode steps, x8 eight sequences at once, @ d4096 behind 4,096 tokens of each.
Bytes are those that a step cannot do without (weights once, chosen experts, keys, values, states), as a share of what
the device copies.
"""

from __future__ import annotations

import argparse
import sys

from sparkinfer.bench.case import all_cases
from sparkinfer.bench.report import heading, render, table_head, table_line
from sparkinfer.bench.session import Options, Session
from sparkinfer.engine.device import choose_device
from sparkinfer.engine.kv_cache import KV_DTYPES
from sparkinfer.errors import CheckpointError, ConfigError

MAX_COUNT = 1 << 24


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, or 1 with one line on stderr."""
    arguments = _parse(argv)
    try:
        _run(arguments)
    except (CheckpointError, ConfigError) as error:
        print(f"sparkinfer: {error}", file=sys.stderr)
        return 1
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sparkinfer.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-m", "--model", required=True, help="a .gguf file, a folder holding one model, pypi:NAME, hf:OWNER/REPO:QUANT")
    add("-p", "--n-prompt", type=_counts, default=[512], metavar="N,...", help="tokens of prompt (512); 0: none")
    add("-n", "--n-gen", type=_counts, default=[128], metavar="N,...", help="decode steps (128); 0: none")
    add("-d", "--n-depth", type=_counts, default=[0], metavar="N,...", help="tokens that are there before (0)")
    add("-b", "--batch", type=_positives, default=[1], metavar="N,...", help="sequences at once (1)")
    add("-r", "--repetitions", type=_positive, default=3, metavar="N", help="timed runs of each test (3)")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    add("--kv-dtype", default="auto", choices=["auto", *KV_DTYPES], help="type of keys and values (auto)")
    add("--step-tokens", type=_positive, default=2048, metavar="N", help="most prompt tokens a step (2048)")
    add("-t", "--threads", type=_positive, metavar="N", help="CPU threads (all)")
    add("-o", "--output", default="table", choices=["table", "json", "csv"], help="what is printed (table)")
    arguments = parser.parse_args(argv)
    if not all_cases(arguments.n_prompt, arguments.n_gen, arguments.n_depth, arguments.batch):
        parser.error("nothing to measure: -p and -n are 0")
    return arguments


def _run(arguments: argparse.Namespace) -> None:
    """Tables grow line by line; the other styles are printed at the end."""
    cases = all_cases(arguments.n_prompt, arguments.n_gen, arguments.n_depth, arguments.batch)
    device = choose_device(arguments.device, where="--device")
    options = Options(arguments.model, device, arguments.kv_dtype, arguments.step_tokens, arguments.threads)
    with Session(options, cases, _to_stderr) as session:
        setting, is_table = session.setting, arguments.output == "table"
        if is_table:
            print(heading(setting), *table_head(), sep="\n", flush=True)
        measurements = []
        for case in cases:
            measurements.append(session.measure(case, arguments.repetitions))
            if is_table:
                print(table_line(setting, measurements[-1]), flush=True)
    if not is_table:
        print(render(arguments.output, setting, measurements))


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _count(text: str, low: int = 0) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_COUNT))
    if not is_number or not low <= int(text) <= MAX_COUNT:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from {low} to {MAX_COUNT}")
    return int(text)


def _positive(text: str) -> int:
    return _count(text, low=1)


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _positives(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())

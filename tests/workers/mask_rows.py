"""A writer of some rows of a mask table, and grammars over bytes, for the tests of the text worker's masks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import numpy as np

from ipc.mask_table import MaskTable
from sparkinfer.errors import RequestError
from sparkinfer.grammar.grammar_cache import CompiledGrammar
from sparkinfer.grammar.matcher import Matcher
from sparkinfer.grammar.output_grammar import OutputGrammar
from sparkinfer.grammar.tokenizer_adapter import byte_tokenizer
from sparkinfer.request import RequestId
from workers.gpu_masks import TableMasks
from workers.mask_stats import MaskStats
from workers.text_masks import MaskWriter

TOKENIZER = byte_tokenizer(())
STOP = TOKENIZER.eos_tokens[0]


def matcher(lark: str) -> Matcher:
    return Matcher.compile(OutputGrammar(lark), TOKENIZER)


def grammar(lark: str) -> CompiledGrammar:
    return CompiledGrammar(matcher(lark), (), len(lark))


def with_writer(
    body: Callable[[MaskWriter, TableMasks, list[tuple[RequestId, RequestError]]], Awaitable[None]],
    rows: range = range(2, 5),
    fast_forward: bool = False,
) -> MaskStats:
    """Run `body` with a writer of some rows of a table of six."""
    table, stats, failures = MaskTable.create(6, TOKENIZER.vocab_size), MaskStats(), []
    for row in rows:
        table.publish(row, 99, np.full(table.num_words, -1, np.int32))  # of a worker before this one

    async def run() -> None:
        writer = MaskWriter(table, rows, stats, lambda *failure: failures.append(failure), fast_forward)
        await body(writer, TableMasks(table), failures)

    asyncio.run(run())
    with contextlib.suppress(BufferError):  # a thread that was left behind may look at a row
        table.close()
    return stats


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)

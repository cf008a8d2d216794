"""The text worker's rows: who gets one, what stands in it, and what becomes of a grammar that fails."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from ipc.mask_table import MaskTable
from sparkinfer.engine.mask_source import allows
from sparkinfer.errors import RequestError
from sparkinfer.grammar.grammar_cache import CompiledGrammar
from sparkinfer.grammar.matcher import GrammarError, Matcher
from sparkinfer.grammar.output_grammar import OutputGrammar
from sparkinfer.grammar.tokenizer_adapter import byte_tokenizer
from sparkinfer.request import RequestId
from workers import text_masks
from workers.gpu_masks import TableMasks
from workers.mask_stats import MaskStats
from workers.text_masks import MaskWriter

TOKENIZER = byte_tokenizer(())
STOP = TOKENIZER.eos_tokens[0]
REQUEST = RequestId(7)


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


def allowed(masks: TableMasks, row: int, position: int) -> set[int]:
    mask = masks.ready(row, position)
    assert mask is not None
    return {token for token in range(TOKENIZER.vocab_size) if allows(mask, token)}


def test_a_row_follows_its_tokens() -> None:
    async def body(writer: MaskWriter, masks: TableMasks, failures: list[object]) -> None:
        assert masks.ready(2, 99) is None  # what was left there is gone
        (row,) = await writer.take_rows(1)
        writer.begin(REQUEST, 0, row, grammar('start: "a" ("b" | "c") "d"'), 10)
        await until(lambda: masks.ready(row, 10) is not None)
        assert allowed(masks, row, 10) == {ord("a")}
        for position, (token, following) in enumerate([("a", {"b", "c"}), ("c", {"d"})], 11):
            writer.push(REQUEST, 0, ord(token))
            writer.push(RequestId(8), 0, ord(token))  # has no grammar
            writer.flush()
            await until(lambda at=position: masks.ready(row, at) is not None)
            assert allowed(masks, row, position) == set(map(ord, following))
            assert masks.ready(row, position - 1) is None
        writer.push(REQUEST, 0, ord("d"))
        writer.flush()
        await until(lambda: masks.ready(row, 13) is not None)
        assert allowed(masks, row, 13) == {STOP}
        assert not failures

    stats = with_writer(body)
    assert sum(stats.counts) == 4


def test_tokens_that_leave_no_choice_stand_beside_the_mask() -> None:
    async def body(writer: MaskWriter, masks: TableMasks, failures: list[object]) -> None:
        (row,) = await writer.take_rows(1)
        writer.begin(REQUEST, 0, row, grammar('start: /[0-9]/ "abc" /[0-9]/'), 5)
        await until(lambda: masks.ready(row, 5) is not None)
        assert masks.forced(row, 5) == []
        writer.push(REQUEST, 0, ord("1"))
        writer.flush()
        await until(lambda: masks.ready(row, 6) is not None)
        assert masks.forced(row, 6) == [*b"abc"]
        assert masks.forced(row, 5) == []
        assert allowed(masks, row, 6) == {ord("a")}
        for token in b"abc":  # all of one step
            writer.push(REQUEST, 0, token)
        writer.flush()
        await until(lambda: masks.ready(row, 9) is not None)
        assert allowed(masks, row, 9) == {*b"0123456789"}
        assert not failures

    assert with_writer(body, fast_forward=True).num_forced_tokens == 2


def test_a_failed_grammar_fails_its_own_request() -> None:
    async def body(writer: MaskWriter, masks: TableMasks, failures: list[tuple[RequestId, RequestError]]) -> None:
        good, bad = await writer.take_rows(2)
        writer.begin(RequestId(1), 0, good, grammar("start: /[ab]+/"), 0)
        writer.begin(RequestId(2), 0, bad, grammar("start: /[ab]+/"), 0)
        writer.push(RequestId(1), 0, ord("a"))
        writer.push(RequestId(2), 0, ord("z"))
        writer.flush()
        await until(lambda: failures and masks.ready(good, 1) is not None)
        assert [request_id for request_id, _ in failures] == [2]
        assert masks.ready(bad, 1) is None

    with_writer(body)


class Odd:
    """Stands for a matcher."""

    def copy(self) -> Odd:
        return self

    def forced(self) -> list[int]:
        return []


class Broken(Odd):
    """Does what native code should not do."""

    def fill(self, _: object) -> None:
        raise BaseException("panicked")


def test_a_panic_fails_its_own_request(caplog: pytest.LogCaptureFixture) -> None:
    async def body(writer: MaskWriter, masks: TableMasks, failures: list[tuple[RequestId, RequestError]]) -> None:
        rows = await writer.take_rows(2)
        writer.begin(RequestId(2), 0, rows[0], CompiledGrammar(Broken(), (), 0), 0)  # type: ignore[arg-type]
        writer.begin(RequestId(1), 0, rows[1], grammar("start: /[ab]+/"), 0)
        await until(lambda: failures and masks.ready(rows[1], 0) is not None)
        ((request_id, error),) = failures
        assert (request_id, error.status) == (2, 500)
        assert "panicked" in error.message

    with_writer(body)
    assert "a mask could not be computed" in caplog.text


def test_a_panic_leaves_the_others_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    class BreaksLater(Odd):
        def fill(self, _: object) -> None:
            pass

        def accept(self, _: int) -> None:
            raise BaseException("panicked")

    async def body(writer: MaskWriter, masks: TableMasks, failures: list[tuple[RequestId, RequestError]]) -> None:
        rows = await writer.take_rows(3)
        broken = CompiledGrammar(BreaksLater(), (), 0)  # type: ignore[arg-type]
        for number, row in enumerate(rows):
            writer.begin(RequestId(number), 0, row, broken if number == 1 else grammar("start: /[ab]+/"), 0)
            await until(lambda row=row: masks.ready(row, 0) is not None)
        for number in range(3):
            writer.push(RequestId(number), 0, ord("a"))
        writer.flush()
        await until(lambda: failures and masks.ready(rows[0], 1) is not None and masks.ready(rows[2], 1) is not None)
        ((request_id, error),) = failures
        assert (request_id, error.status) == (1, 500)
        assert broken.has_failed

    monkeypatch.setattr(text_masks, "NUM_THREADS", 1)
    with_writer(body)


def test_a_mask_that_never_comes_fails_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    class Slow(Odd):
        def fill(self, _: object) -> None:
            release.wait()

    async def body(writer: MaskWriter, masks: TableMasks, failures: list[tuple[RequestId, RequestError]]) -> None:
        rows = await writer.take_rows(1)
        writer.begin(RequestId(3), 0, rows[0], CompiledGrammar(Slow(), (), 0), 0)  # type: ignore[arg-type]
        writer.check()
        assert not failures
        monkeypatch.setattr(text_masks, "MASK_TIMEOUT_S", -1.0)
        writer.check()
        assert failures[0][0] == 3
        release.set()

    with_writer(body)


def test_a_slow_grammar_leaves_the_threads_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    at, release = threading.Event(), threading.Event()
    threads: list[str] = []

    class Slow(Odd):
        def accept(self, _: int) -> None:
            pass

        def fill(self, _: object) -> None:
            threads.append(threading.current_thread().name)
            if len(threads) == 2:
                at.set()
                release.wait()

    async def body(writer: MaskWriter, masks: TableMasks, failures: list[tuple[RequestId, RequestError]]) -> None:
        rows = await writer.take_rows(3)
        slow = CompiledGrammar(Slow(), (), 0)  # type: ignore[arg-type]
        writer.begin(RequestId(1), 0, rows[0], slow, 0)
        await until(lambda: masks.ready(rows[0], 0) is not None)
        slow.took(1.0)
        writer.push(RequestId(1), 0, 5)
        writer.flush()
        await until(at.is_set)
        for number in (1, 2):  # on both threads
            writer.begin(RequestId(9), number, rows[number], grammar("start: /[ab]+/"), 0)
            await until(lambda row=rows[number]: masks.ready(row, 0) is not None)
        monkeypatch.setattr(text_masks, "MAX_SLOW_BYTES", 1)
        writer.check()
        ((request_id, error),) = failures
        assert (request_id, error.status, error.code) == (1, 400, "schema_too_complex")
        release.set()

    with_writer(body)
    assert [name.startswith("slow") for name in threads] == [False, True]


def test_a_last_token_is_not_left_to_the_next_owner_of_a_row() -> None:
    async def body(writer: MaskWriter, masks: TableMasks, failures: list[tuple[RequestId, RequestError]]) -> None:
        for number in range(3):
            (row,) = await writer.take_rows(1)
            writer.begin(RequestId(number), 0, row, grammar("start: /[ab]+/"), 0)
            for position in range(2):
                await until(lambda row=row, at=position: masks.ready(row, at) is not None)
                writer.push(RequestId(number), 0, ord("a"))
                writer.flush()
            await until(lambda row=row: masks.ready(row, 2) is not None)
            writer.push(RequestId(number), 0, ord("b"))
            writer.end(RequestId(number), 0)  # in the same batch of news

    with_writer(body, rows=range(2, 3))


def test_a_limit_that_an_answer_runs_into_ends_its_grammar() -> None:
    class Full(Odd):
        def fill(self, _: object) -> None:
            raise GrammarError("lexer error: too many states")

    async def body(writer: MaskWriter, masks: TableMasks, failures: list[tuple[RequestId, RequestError]]) -> None:
        (row,) = await writer.take_rows(1)
        full = CompiledGrammar(Full(), (), 0)  # type: ignore[arg-type]
        writer.begin(RequestId(1), 0, row, full, 0)
        await until(lambda: failures)
        assert (failures[0][1].status, failures[0][1].code) == (400, "schema_too_complex")
        assert full.has_failed

    with_writer(body)


def test_rows_are_given_first_come_first_served_and_come_back() -> None:
    async def body(writer: MaskWriter, masks: TableMasks, failures: list[object]) -> None:
        first = await writer.take_rows(2)
        assert set(first) < {2, 3, 4}
        many, few = asyncio.create_task(writer.take_rows(3)), asyncio.create_task(writer.take_rows(1))
        await asyncio.sleep(0)
        assert not few.done()  # one is free, but somebody else was here before
        for choice, row in enumerate(first):
            writer.begin(REQUEST, choice, row, grammar("start: /[ab]+/"), 0)
        for choice in range(2):
            writer.end(REQUEST, choice)
        writer.end(REQUEST, 5)  # unknown
        assert sorted(await many) == [2, 3, 4]
        assert all(masks.ready(row, 0) is None for row in first)
        writer.give_back([3])
        assert await few == [3]
        gone = asyncio.create_task(writer.take_rows(1))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        writer.give_back([2])
        assert await writer.take_rows(1) == [2]

    with_writer(body)


def test_matchers_say_what_is_wrong() -> None:
    with pytest.raises(GrammarError):
        matcher("start: /[/")
    with pytest.raises(GrammarError):
        matcher('start: "a"').accept(ord("b"))

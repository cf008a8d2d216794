"""What becomes of a grammar whose masks fail, are slow or never come, and of the others beside it."""

from __future__ import annotations

import threading

import pytest

from sparkinfer.errors import RequestError
from sparkinfer.grammar.grammar_cache import CompiledGrammar
from sparkinfer.grammar.matcher import GrammarError
from sparkinfer.request import RequestId
from tests.workers.mask_rows import grammar, until, with_writer
from workers import text_masks
from workers.gpu_masks import TableMasks
from workers.text_masks import MaskWriter


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

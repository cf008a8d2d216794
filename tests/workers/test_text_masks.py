"""The text worker's rows: who gets one, and what stands in it."""

from __future__ import annotations

import asyncio

import pytest

from sparkinfer.engine.mask_source import allows
from sparkinfer.errors import RequestError
from sparkinfer.grammar.matcher import GrammarError
from sparkinfer.request import RequestId
from tests.workers.mask_rows import STOP, TOKENIZER, grammar, matcher, until, with_writer
from workers.gpu_masks import TableMasks
from workers.text_masks import MaskWriter

REQUEST = RequestId(7)


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

"""BlockManager: blocks go out once, come back once, and losses are seen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.engine.block_manager import BlockManager, IntegrityError


def test_blocks_needed_are_rounded_up():
    manager = BlockManager(8, 16)
    assert [manager.num_blocks_for(tokens) for tokens in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


def test_all_blocks_can_be_had_and_no_more():
    manager = BlockManager(3, 4)
    assert manager.can_allocate(3)
    assert sorted(manager.allocate(3)) == [0, 1, 2]
    assert not manager.can_allocate(1)
    with pytest.raises(IntegrityError, match="1 blocks asked for, 0 free"):
        manager.allocate(1)


def test_a_block_cannot_be_freed_twice():
    manager = BlockManager(3, 4)
    blocks = manager.allocate(2)
    manager.free(blocks)
    with pytest.raises(IntegrityError, match="freed twice"):
        manager.free(blocks[:1])


def test_a_shared_block_is_free_after_its_last_holder():
    manager = BlockManager(3, 4)
    table = manager.allocate(2)
    manager.share(table[0])
    manager.check_integrity([table, table[:1]])
    manager.check_integrity([table], cached=table[:1])
    manager.free(table)
    assert manager.num_free_blocks == 2
    manager.free(table[:1])
    assert manager.num_free_blocks == 3
    with pytest.raises(IntegrityError, match="shared but free"):
        manager.share(table[0])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tables: tables[0].pop(), "blocks owned"),
        (lambda tables: tables[0].append(tables[1][0]), "1 references, 2 owners"),
        (lambda tables: tables[0].append(5), "0 references, 1 owners"),
    ],
    ids=["lost", "shared", "taken"],
)
def test_the_check_sees_what_went_wrong(spoil, message):
    manager = BlockManager(6, 4)
    tables = [manager.allocate(2), manager.allocate(2)]
    manager.check_integrity(tables)
    spoil(tables)
    with pytest.raises(IntegrityError, match=message):
        manager.check_integrity(tables)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 4), st.none()), max_size=40))
def test_any_order_of_taking_and_giving_back_keeps_the_pool_whole(requests):
    manager = BlockManager(10, 4)
    tables: list[list[int]] = []
    for wanted in requests:
        if wanted is None:
            if tables:
                manager.free(tables.pop(0))
        elif manager.can_allocate(wanted):
            tables.append(manager.allocate(wanted))
        manager.check_integrity(tables)
    for table in tables:
        manager.free(table)
    assert manager.num_free_blocks == 10

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipc.codec import MalformedMessage
from ipc.messages import SequenceFinished, SequenceQueued
from ipc.token_frame import (
    EVENTS,
    RECORD_DTYPE,
    SCORES,
    TOKENS,
    TokenFrameWriter,
    pack_events,
    unpack,
    unpack_events,
)

request_ids = st.integers(0, 2**64 - 1)
choices = st.integers(0, 2**16 - 1)
token_ids = st.integers(-(2**31), 2**31 - 1)
logprobs = st.floats(max_value=0, width=32, allow_nan=False)
tops = st.lists(st.tuples(token_ids, logprobs), max_size=20)
records = st.lists(st.tuples(request_ids, choices, token_ids, st.none() | logprobs, tops), max_size=20)


def as_lists(unpacked):
    return [(*record[:4], list(record[4])) for record in unpacked]


@settings(max_examples=100, deadline=None)
@given(records)
def test_what_goes_in_comes_out_in_order(records):
    writer = TokenFrameWriter()
    for request_id, choice, token_id, logprob, top in records:
        writer.append(request_id, choice, token_id, logprob, top)
    assert len(writer) == len(records)
    frame = writer.to_bytes()
    assert frame[0] == TOKENS
    assert as_lists(unpack(frame)) == records
    assert len(writer) == 0
    assert unpack(writer.to_bytes()) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(request_ids, choices, token_ids), max_size=50))
def test_bulk_equals_one_by_one(tokens):
    one_by_one, bulk = TokenFrameWriter(), TokenFrameWriter()
    for token in tokens:
        one_by_one.append(*token)
    columns = [list(column) for column in zip(*tokens)] or [[], [], []]
    bulk.extend(np.array(columns[0], np.uint64), np.array(columns[1], np.uint16), np.array(columns[2], np.int32))
    assert bulk.to_bytes() == one_by_one.to_bytes()
    bulk.extend(*columns)
    assert as_lists(unpack(bulk.to_bytes())) == [(*token, None, []) for token in tokens]


def test_scores_are_no_tokens():
    writer = TokenFrameWriter(SCORES)
    writer.append(1, 0, 10, -0.5, [(10, -0.5), (11, -1.5)])
    frame = writer.to_bytes()
    assert frame[0] == SCORES
    assert as_lists(unpack(frame, SCORES)) == [(1, 0, 10, -0.5, [(10, -0.5), (11, -1.5)])]
    with pytest.raises(MalformedMessage, match="of kind 03, expected 01"):
        unpack(frame)


def test_bulk_and_single_records_keep_their_order():
    writer = TokenFrameWriter()
    writer.append(1, 0, 10, -0.5, [(10, -0.5), (11, -1.5)])
    writer.extend([2, 3], [0, 1], [20, 30])
    writer.append(4, 0, 40, -2.0)
    writer.append(5, 0, 50, -0.25, [(50, -0.25)])
    assert as_lists(unpack(writer.to_bytes())) == [
        (1, 0, 10, -0.5, [(10, -0.5), (11, -1.5)]),
        (2, 0, 20, None, []),
        (3, 1, 30, None, []),
        (4, 0, 40, -2.0, []),
        (5, 0, 50, -0.25, [(50, -0.25)]),
    ]


def test_bytes_are_those_of_the_drawing():
    writer = TokenFrameWriter()
    writer.append(0x0102030405060708, 9, 10, -1.0, [(7, -1.0), (8, -2.0)])
    assert writer.to_bytes() == (
        b"\x01\0\0\0" b"\1\0\0\0" b"\x08\x07\x06\x05\x04\x03\x02\x01" b"\x0a\0\0\0" b"\x09\0" b"\2\0"
        b"\0\0\x80\xbf" b"\1\0\0\0" b"\7\0\0\0" b"\x08\0\0\0" b"\0\0\x80\xbf" b"\0\0\0\xc0"
    )
    assert RECORD_DTYPE.itemsize == 24


@pytest.mark.parametrize("wrong", [(2**64, 0, 0), (0, 2**16, 0), (0, 0, 2**31), (-1, 0, 0)])
def test_value_that_does_not_fit_raises(wrong):
    writer = TokenFrameWriter()
    with pytest.raises(struct.error):
        writer.append(*wrong)
    assert unpack(writer.to_bytes()) == []


def test_failed_append_adds_nothing():
    writer = TokenFrameWriter()
    with pytest.raises(struct.error):
        writer.append(1, 0, 5, -0.5, [(2**31, -0.5)])
    writer.append(2, 0, 6)
    assert unpack(writer.to_bytes()) == [(2, 0, 6, None, ())]


@settings(max_examples=100, deadline=None)
@given(records.filter(bool), st.data())
def test_cut_or_lengthened_frame_raises(records, data):
    writer = TokenFrameWriter()
    for record in records:
        writer.append(*record)
    frame = writer.to_bytes()
    with pytest.raises(MalformedMessage, match="token frame"):
        unpack(frame[: data.draw(st.integers(0, len(frame) - 1))])
    with pytest.raises(MalformedMessage, match="token frame"):
        unpack(frame + b"\0")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=100))
def test_noise_never_does_anything_but_raise(noise):
    with pytest.raises(MalformedMessage):
        unpack(b"\3" + noise)
    with pytest.raises(MalformedMessage):
        unpack_events(b"\3" + noise)
    for unpacker, kind in ((unpack, b"\1"), (unpack_events, b"\2")):
        try:
            assert isinstance(unpacker(kind + noise), list)
        except MalformedMessage:
            continue


def test_events_travel_in_order():
    events = [
        SequenceQueued(2**64 - 1),
        SequenceFinished(1, 0, 1, 32, 12.5, 80.25),
        SequenceFinished(2, 1, 4, 0, 0.0, 0.0, 503, "engine_restarted", "The engine restarted."),
    ]
    frame = pack_events(events)
    assert frame[0] == EVENTS
    assert unpack_events(frame) == events

"""Which calls of a conversation were checked before."""

from __future__ import annotations

from sparkinfer.grammar.grammar_spec import CallCheck
from workers import known_calls
from workers.known_calls import KnownCalls

SCHEMAS = ('{"type": "object"}', '{"required": ["a"]}', '{"required": ["b"]}')


def calls(*made: tuple[int, str]) -> CallCheck:
    return CallCheck(SCHEMAS, tuple((f"messages[{i}]", *call) for i, call in enumerate(made)))


def test_only_new_calls_are_left() -> None:
    known = KnownCalls()
    first = calls((1, '{"a": 1}'), (2, '{"b": 1}'))
    assert known.others(first) == CallCheck(("true", *SCHEMAS[1:]), first.calls)
    known.add(first)
    assert known.others(first) is None
    more = calls((1, '{"a": 1}'), (2, '{"b": 1}'), (2, '{"a": 1}'))
    assert known.others(more) == CallCheck(("true", "true", SCHEMAS[2]), (("messages[2]", 2, '{"a": 1}'),))


def test_a_call_is_known_with_its_schema_alone() -> None:
    known = KnownCalls()
    known.add(calls((0, '{"a": 1}')))
    for other in (calls((1, '{"a": 1}')), calls((0, '{"a":1}'))):
        assert known.others(other) is not None
    renumbered = CallCheck(SCHEMAS[::-1], (("messages[9]", 2, '{"a": 1}'),))
    assert known.others(renumbered) is None


def test_memory_is_bounded() -> None:
    known = KnownCalls()
    known.add(calls(*((0, str(i)) for i in range(known_calls.MAX_CALLS))))
    assert known.others(calls((0, "0"))) is None
    known.add(calls((0, "new")))
    assert known.others(calls((0, "0"), (0, "new"))) is None
    assert known.others(calls((0, "1"))) is not None

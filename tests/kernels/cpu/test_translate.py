"""Compiled functions do what Python does with the same source."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu import compile_cache
from kernels.cpu.program import Kernel, jit_part, specialised
from kernels.cpu.simd import Float, Int, load_f32, load_i64, store_f32, store_i64

WHOLE = st.integers(-(2**31), 2**31)
IS_LARGE, STEPS = False, 3
ZERO = np.float32(0.0)


@pytest.fixture(autouse=True, scope="module")
def _own_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    before = compile_cache._folder
    compile_cache.use_folder(tmp_path_factory.mktemp("kernels"))
    yield
    compile_cache.use_folder(before)


def run(function: Callable[..., None], *arguments: int, result: Any = ctypes.c_int64) -> Any:
    """What the function stores at its first argument."""
    out = result(0)
    Kernel(function).function()(ctypes.addressof(out), *arguments)
    return out.value


def divided(out: int, x: int, y: int) -> None:
    store_i64(out, x // y * 1000 + x % y)


@settings(max_examples=50, deadline=None)
@given(WHOLE, WHOLE.filter(bool))
def test_division_rounds_down(x: int, y: int) -> None:
    assert run(divided, x, y) == x // y * 1000 + x % y


def divided_by_constants(out: int, x: int) -> None:
    store_i64(out, x // 8 * 100 + x % 8 + (x // 3 * 10000 + x % -3) - (-(-x // 4)))


@settings(max_examples=30, deadline=None)
@given(WHOLE)
def test_division_by_constants(x: int) -> None:
    assert run(divided_by_constants, x) == x // 8 * 100 + x % 8 + (x // 3 * 10000 + x % -3) - (-(-x // 4))


def looped(out: int, count: int) -> None:
    total, i = 0, 100
    for i in range(1, count, 2):
        if i == 5:
            continue
        if total > 1000 or not i < 40:
            break
        total += i if i % 3 == 0 and i != 9 else -1
    for j in range(count, 0, -STEPS):
        total = total * 2 + j
    while True:
        total -= 7
        if total < 0:
            break
    store_i64(out, total * 1000 + i)


@pytest.mark.parametrize("count", [0, 1, 2, 6, 11, 50])
def test_loops(count: int) -> None:
    kept: dict[int, int] = {}
    expected = dict(looped.__globals__, store_i64=kept.__setitem__)
    type(looped)(looped.__code__, expected)(0, count)
    assert run(looped, count) == kept[0]


@jit_part(Float, Float, Int)
def jit_mixed(x, n):  # type: ignore[no-untyped-def]  # as kernels are written
    if n > 2:
        return x / np.float32(n)
    return np.float32(math.sqrt(np.float64(x) * n) + math.log1p(0.5 * n))


def mixed(out: int, x: int, n: int) -> None:
    a, b = np.float32(x), np.float32(0.25)
    a, b = b, a
    store_f32(out, max(jit_mixed(b, n), a, ZERO) - np.exp(a))


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_floats(n: int) -> None:
    part = np.float32(30) / np.float32(n) if n > 2 else np.float32(math.sqrt(30.0 * n) + math.log1p(0.5 * n))
    expected = max(part, np.float32(0.25)) - np.exp(np.float32(0.25))
    assert run(mixed, 30, n, result=ctypes.c_float) == pytest.approx(float(expected), rel=1e-6)


def kind_of_thing(out: int) -> None:
    if IS_LARGE:
        store_i64(out, 1)
    else:
        unknown_here(out)  # type: ignore[name-defined]  # noqa: F821  # never compiled for a large one


def test_what_a_constant_leaves_out_is_not_compiled() -> None:
    assert run(specialised(kind_of_thing, "large", {"IS_LARGE": True})) == 1  # type: ignore[arg-type]
    with pytest.raises(SyntaxError, match=r"line [0-9]+: unknown_here: not known here"):
        Kernel(kind_of_thing).compile()


def loses(out: int) -> None:
    n = 1
    n = 0.5  # type: ignore[assignment]
    store_i64(out, n)


def makes_a_list(out: int) -> None:
    store_i64(out, [1][0])


def writes_to_a_place(out: int) -> None:
    places = 1
    places[0] = 2  # type: ignore[index]  # numbers have none


def asks_who_it_is(out: int) -> None:
    other = out + 1
    if out is other:
        store_i64(out, 1)


def forgets_an_argument(out: int) -> None:
    store_i64(out)


@pytest.mark.parametrize(
    ("function", "message"),
    [(loses, "n = 0.5: double where i64 is needed"), (makes_a_list, "not translated"),
     (writes_to_a_place, "only names are assigned to"), (asks_who_it_is, "Is is not translated"),
     (forgets_an_argument, "1 arguments, not 2")],
)
def test_what_is_refused(function: Callable[..., None], message: str) -> None:
    with pytest.raises(SyntaxError, match=message):
        Kernel(function).compile()


def copied(out: int, source: int) -> None:
    store_i64(out, load_i64(source) + np.int64(load_f32(source + 8)))


def test_memory_and_casts() -> None:
    source = np.array([40, 0], np.int64)
    source[1:].view(np.float32)[0] = 2.75
    assert run(copied, source.ctypes.data) == 42


def test_compiled_once(tmp_path: Path) -> None:
    """The second process or thread finds the file; one that does not wait does something else meanwhile."""
    before, made = compile_cache._folder, []

    def make() -> bytes:
        made.append(compile_cache.object_file("thing", lambda: b"never", waits=False))
        return b"content"

    compile_cache.use_folder(tmp_path)
    try:
        assert [compile_cache.object_file("thing", make) for _ in range(2)] == [b"content"] * 2
    finally:
        compile_cache.use_folder(before)
    assert made == [None]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = compile_cache._folder
    compile_cache.use_folder(tmp_path / "file")
    try:
        assert compile_cache.object_file("thing", lambda: b"content") == b"content"
    finally:
        compile_cache.use_folder(before)

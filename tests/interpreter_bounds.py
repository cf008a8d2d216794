"""Triton's interpreter, which reads and writes wherever a kernel points, confined to the tensors of the launch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from triton.runtime import interpreter

_starts: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)  # of the launch's allocations, ascending
_ends: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)


def _allocations(args: tuple[list[Any], dict[str, Any]]) -> list[tuple[int, int]]:
    """(first byte, byte behind the last) of every tensor's storage."""
    found = set()
    waiting = [*args[0], *args[1].values()]
    while waiting:
        arg = waiting.pop()
        if isinstance(arg, tuple):
            waiting.extend(arg)
        elif hasattr(arg, "base"):  # of a descriptor
            waiting.append(arg.base)
        elif hasattr(arg, "untyped_storage"):
            storage = arg.untyped_storage()
            found.add((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
    return sorted(found)


def _check(what: str, pointers: npt.NDArray[np.uint64], mask: Any, itemsize: int) -> None:
    pointers, mask = np.broadcast_arrays(pointers, np.asarray(mask).astype(bool))
    used = pointers[mask].astype(np.uint64)
    if not used.size:
        return
    index = np.searchsorted(_starts, used, side="right") - 1
    is_outside = (index < 0) | (used + np.uint64(itemsize) > _ends[np.maximum(index, 0)])
    if is_outside.any():
        where = np.flatnonzero(is_outside)[0]
        near = max(int(index[where]), 0)
        offset = int(used[where]) - int(_starts[near])
        raise IndexError(f"a {what} of {itemsize} bytes at byte {offset} of a tensor of "
                         f"{int(_ends[near]) - int(_starts[near])} bytes")


def confine_to_tensors() -> None:
    """Loads, stores and atomics outside the launch's tensors become errors from now on."""
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    load, store, atomic = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw
    prepare: Callable[..., Any] = executor._init_args_hst

    @functools.wraps(load)
    def checked_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        _check("load", ptrs.data, mask.data, _itemsize(ptrs))
        return load(self, ptrs, mask, *rest, **named)

    @functools.wraps(store)
    def checked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        _check("store", ptrs.data, mask.data, _itemsize(ptrs))
        return store(self, ptrs, value, mask, *rest, **named)

    @functools.wraps(atomic)
    def checked_atomic(self: Any, operation: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        _check("atomic", ptr.data, mask.data, _itemsize(ptr))
        return atomic(self, operation, ptr, val, mask, *rest)

    @functools.wraps(prepare)
    def remembered(self: Any, *args: Any) -> Any:
        global _starts, _ends
        found = prepare(self, *args)
        bounds = np.array(_allocations(found) or [(0, 0)], np.uint64)
        _starts, _ends = bounds[:, 0], bounds[:, 1]
        return found

    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    builder.create_atomic_rmw, executor._init_args_hst = checked_atomic, remembered


def _itemsize(pointers: Any) -> int:
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)

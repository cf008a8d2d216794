"""Triton's interpreter without what it does again and again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from triton import language
from triton.runtime import interpreter

_MODULES = {id(language), id(language.core)}


@functools.cache
def _names(function: Callable[..., object]) -> frozenset[int]:
    """The language's modules that a kernel's function sees: those that are patched for it."""
    return frozenset(_MODULES & {id(value) for value in function.__globals__.values()})


class _Launch:
    """What is patched until the launch ends."""

    def __init__(self, scope: Any, patched: set[frozenset[int]]) -> None:
        self._scope, self._patched = scope, patched

    def restore(self) -> None:
        self._patched.clear()
        self._scope.restore()


def _once_a_launch(patch: Callable[[Any], Any]) -> Callable[[Any], _Launch]:
    patched: set[frozenset[int]] = set()

    def patch_once(function: Any) -> _Launch:
        names = _names(function)
        is_new = names not in patched
        patched.add(names)
        return _Launch(patch(function) if is_new else interpreter._LangPatchScope(), patched)

    return patch_once


def patch_language_once_a_launch() -> None:
    """Each call of one of a kernel's functions by another patches the whole language: half of all the time."""
    if hasattr(interpreter, "_patch_lang") and hasattr(interpreter, "_LangPatchScope"):
        interpreter._patch_lang = _once_a_launch(interpreter._patch_lang)

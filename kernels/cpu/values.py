"""Numbers of compiled code: their types, what is done with them, functions that code calls. Knows LLVM; never syntax.

A value is LLVM's, or Python's where it is a constant, which is folded. Whole numbers become float64 beside floats,
float32 becomes float64 beside float64, as scalars of numpy do; nothing is checked at run time.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
from llvmlite import ir

LANES = 16
I1, I32, I64, F32, F64 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()
V16F, VOID = ir.VectorType(F32, LANES), ir.VoidType()
CASTS = {np.float32: F32, np.float64: F64, np.int64: I64}
RANK = {I1: 0, I64: 1, F32: 2, F64: 3}

PYTHON_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.USub: operator.neg, ast.Not: operator.not_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
COMPARISONS: dict[type[ast.AST], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}
FLOAT_METHODS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
INT_METHODS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.LShift: "shl", ast.RShift: "ashr", ast.BitAnd: "and_",
    ast.BitOr: "or_",
}
# A function of one float: LLVM's or the C library's name, and the type that it works in, None for its argument's.
MATH: dict[Any, tuple[str, Any]] = {
    np.sqrt: ("llvm.sqrt", None), np.exp: ("llvm.exp", None), math.sqrt: ("llvm.sqrt", F64),
    math.exp: ("llvm.exp", F64), math.log1p: ("log1p", F64),
}


class Intrinsic:
    """A function that code calls and that emits its own instructions.

    arguments: a type each; None: a constant, given to `emit` as it is
    emit:      emit(builder, *values) -> the value, of type `result`
    """

    def __init__(self, result: Any, arguments: Sequence[Any], emit: Callable[..., Any]) -> None:
        self.result, self.arguments, self.emit = result, tuple(arguments), emit


class Part:
    """A function that kernels call; it becomes a part of each of their modules."""

    def __init__(self, function: FunctionType, result: Any, arguments: Sequence[Any]) -> None:
        self.function, self.result, self.arguments = function, result, tuple(arguments)


def typed(value: Any) -> Any:
    """LLVM's value, of a constant if it is one of Python's."""
    if isinstance(value, ir.Value):
        return value
    if isinstance(value, bool | np.bool_):
        return ir.Constant(I1, int(value))
    if isinstance(value, int):
        return ir.Constant(I64, value)
    return ir.Constant(F32 if isinstance(value, np.float32) else F64, float(value))


def _common(kinds: set[Any]) -> Any:
    """The type that holds values of all these."""
    return F64 if kinds == {I64, F32} else max(kinds, key=lambda kind: RANK.get(kind, len(RANK)))


class Values:
    """Emits what is done with values where builder `b` is. A TypeError names what is not done with a type."""

    def __init__(self, b: Any) -> None:
        self._b = b

    def operate(self, kind: type[ast.AST], x: Any, y: Any) -> Any:
        """x and y through an operator of two."""
        if not isinstance(x, ir.Value) and not isinstance(y, ir.Value):
            return PYTHON_OPERATORS[kind](x, y)
        if kind in (ast.FloorDiv, ast.Mod):
            return self._divide(kind is ast.Mod, x, y)
        x, y = self.alike(x, y)
        if kind is ast.Div and x.type == I64:
            x, y = self.convert(x, F64), self.convert(y, F64)
        method = (INT_METHODS if x.type == I64 else FLOAT_METHODS).get(kind)
        if method is None:
            raise TypeError(f"{kind.__name__} of {x.type}")
        return getattr(self._b, method)(x, y)

    def _divide(self, wants_rest: bool, x: Any, y: Any) -> Any:
        """Of whole numbers, rounded down, as Python has it."""
        b = self._b
        if not isinstance(y, ir.Value) and y > 0 and y & (y - 1) == 0:
            amount = y - 1 if wants_rest else y.bit_length() - 1
            return (b.and_ if wants_rest else b.ashr)(x, typed(amount))
        x, y = self.convert(x, I64), self.convert(y, I64)
        quotient, rest, zero = b.sdiv(x, y), b.srem(x, y), typed(0)
        is_off = b.and_(b.icmp_signed("!=", rest, zero), b.icmp_signed("<", b.xor(rest, y), zero))
        if wants_rest:
            return b.add(rest, b.select(is_off, y, zero))
        return b.sub(quotient, b.zext(is_off, I64))

    def compare(self, kind: type[ast.AST], x: Any, y: Any) -> Any:
        """A truth value; NaN is unequal to all and nothing else."""
        if not isinstance(x, ir.Value) and not isinstance(y, ir.Value):
            return PYTHON_OPERATORS[kind](x, y)
        x, y = self.alike(x, y)
        name = COMPARISONS.get(kind)
        if name is None:
            raise TypeError(f"{kind.__name__} is not translated")
        if x.type == I64:
            return self._b.icmp_signed(name, x, y)
        return (self._b.fcmp_unordered if name == "!=" else self._b.fcmp_ordered)(name, x, y)

    def better(self, kind: type[ast.AST], x: Any, y: Any) -> Any:
        """y if y compares so with x, else x."""
        x, y = self.alike(x, y)
        return self._b.select(self.compare(kind, y, x), y, x)

    def apply(self, name: str, kind: Any, value: Any) -> Any:
        """A function of MATH."""
        value = self.convert(value, kind or value.type)
        if name.startswith("llvm."):
            name += ".f32" if value.type == F32 else ".f64"
        module = self._b.module
        if name not in module.globals:
            ir.Function(module, ir.FunctionType(value.type, [value.type]), name)
        return self._b.call(module.globals[name], [value])

    def choose(self, condition: Any, *branches: Callable[[], Any]) -> Any:
        """What the first of two branches gives, if the condition holds, else the second; only that one is run."""
        if not isinstance(condition, ir.Value):
            return branches[0 if condition else 1]()
        b, found = self._b, []
        blocks, after = [b.append_basic_block() for _ in branches], b.append_basic_block()
        b.cbranch(condition, *blocks)
        for block, branch in zip(blocks, branches):
            b.position_at_end(block)
            found.append((branch(), b.block))
        kind = _common({typed(value).type for value, _ in found})
        ends = []
        for value, block in found:
            b.position_at_end(block)
            ends.append((self.convert(value, kind), block))
            b.branch(after)
        b.position_at_end(after)
        result = b.phi(kind)
        for value, block in ends:
            result.add_incoming(value, block)
        return result

    def as_truth(self, value: Any) -> Any:
        """Whether a number is not 0."""
        return value if value.type == I1 else self._b.icmp_signed("!=", value, typed(0))

    def alike(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Both in one type, truth values as numbers."""
        x, y = typed(x), typed(y)
        if x.type == y.type and x.type != I1:
            return x, y
        kind = I64 if x.type == y.type else _common({x.type, y.type})
        return self.convert(x, kind), self.convert(y, kind)

    def convert(self, value: Any, kind: Any, is_explicit: bool = False) -> Any:
        """The value in another type; what would lose something only where the code says so."""
        value = typed(value)
        if value.type == kind:
            return value
        rank, wanted = RANK.get(value.type), RANK.get(kind)
        if rank is None or wanted is None or (wanted < rank and not is_explicit):
            raise TypeError(f"{value.type} where {kind} is needed")
        if value.type == I1:
            value = self._b.zext(value, I64)
            return value if kind == I64 else self._b.sitofp(value, kind)
        if kind == I64:
            return self._b.fptosi(value, I64)
        if value.type == I64:
            return self._b.sitofp(value, kind)
        return self._b.fpext(value, F64) if kind == F64 else self._b.fptrunc(value, F32)

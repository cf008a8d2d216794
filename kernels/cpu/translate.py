"""Functions in a small part of Python -> LLVM IR: numbers, vectors of 16 floats, conditions, loops over range.

Nothing is allocated, checked or raised; whatever else the code says is a SyntaxError when its kernel is compiled. A
variable has the type of its first assignment. Constants of the module are folded, and what an `if` on them leaves out
is not compiled. Knows syntax; never what is computed.

(numba reads the same sources. Finding their types took it longer than all of this, LLVM's part included.)
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence
from functools import cache, partial, reduce
from pathlib import Path
from types import FunctionType
from typing import Any

from llvmlite import ir

from kernels.cpu.values import CASTS, I64, MATH, PYTHON_OPERATORS, VOID, Intrinsic, Part, Values, typed


def module_of(name: str, function: FunctionType, num_arguments: int) -> Any:
    """A module with one function of int64 that can be called from outside, `name`."""
    module = ir.Module(name)
    _emit(module, function, name, VOID, [I64] * num_arguments)
    return module


def _emit(module: Any, function: FunctionType, name: str, result: Any, arguments: Sequence[Any]) -> Any:
    target = ir.Function(module, ir.FunctionType(result, arguments), name)
    target.attributes.add("nounwind")
    _Translator(target, function).translate()
    return target


@cache
def _definitions(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(Path(path).read_text("utf-8"), path)
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


class _Translator:
    """One function; variables are places on the stack, which LLVM turns into values."""

    def __init__(self, target: Any, function: FunctionType) -> None:
        self._target, self._path = target, function.__code__.co_filename
        self._names: Mapping[str, Any] = function.__globals__
        # A specialised function has another name than its source; its first line is the same.
        self._node = next(
            node for node in _definitions(self._path).values()
            if min([node.lineno, *(d.lineno for d in node.decorator_list)]) == function.__code__.co_firstlineno
        )
        self._places: dict[str, Any] = {}
        self._loops: list[tuple[Any, Any]] = []  # where `continue` and `break` go
        self._b = ir.IRBuilder(target.append_basic_block())
        self._values = Values(self._b)

    def translate(self) -> None:
        for argument, value in zip(self._node.args.args, self._target.args, strict=True):
            self._assign(argument.arg, value)
        self._run(self._node.body)
        if not self._b.block.is_terminated:
            self._b.ret_void()

    def _run(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            if self._b.block.is_terminated:
                return
            try:
                self._visit(node)
            except TypeError as error:
                raise self._error(node, str(error)) from error

    def _visit(self, node: ast.AST) -> Any:
        method = getattr(self, f"_visit_{type(node).__name__}", None)
        if method is None:
            raise self._error(node, "not translated")
        return method(node)

    def _error(self, node: ast.AST, what: str) -> SyntaxError:
        line = getattr(node, "lineno", 0)
        return SyntaxError(f"{self._path}, line {line}: {ast.unparse(node)}: {what}")

    # ---- statements

    def _assign(self, name: str, value: Any) -> None:
        value = typed(value)
        place = self._places.get(name)
        if place is None:
            with self._b.goto_entry_block():
                place = self._places[name] = self._b.alloca(value.type)
        self._b.store(self._values.convert(value, place.allocated_type), place)

    def _visit_Assign(self, node: ast.Assign) -> None:
        values = [self._visit(item) for item in node.value.elts] if isinstance(node.value, ast.Tuple) else None
        value = self._visit(node.value) if values is None else None
        for target in node.targets:
            if isinstance(target, ast.Tuple):
                for item, part in zip(target.elts, values or (), strict=True):
                    self._assign(self._name(item), part)
            else:
                self._assign(self._name(target), value)

    def _name(self, node: ast.AST) -> str:
        if not isinstance(node, ast.Name):
            raise self._error(node, "only names are assigned to")
        return node.id

    def _visit_AugAssign(self, node: ast.AugAssign) -> None:
        name = self._name(node.target)
        old = self._b.load(self._places[name])
        self._assign(name, self._values.operate(type(node.op), old, self._visit(node.value)))

    def _visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self._visit(node.value)

    def _visit_If(self, node: ast.If) -> None:
        condition = self._truth(node.test)
        if not isinstance(condition, ir.Value):
            self._run(node.body if condition else node.orelse)
            return
        branches = [self._b.append_basic_block() for _ in range(2)]
        after = self._b.append_basic_block()
        self._b.cbranch(condition, *branches)
        for block, body in zip(branches, (node.body, node.orelse)):
            self._b.position_at_end(block)
            self._run(body)
            self._go(after)
        self._b.position_at_end(after)

    def _go(self, block: Any) -> None:
        if not self._b.block.is_terminated:
            self._b.branch(block)

    def _visit_While(self, node: ast.While) -> None:
        test, body, after = (self._b.append_basic_block() for _ in range(3))
        self._b.branch(test)
        self._b.position_at_end(test)
        condition = self._truth(node.test)
        self._b.cbranch(typed(condition), body, after)
        self._loop(node.body, body, test, after)

    def _loop(self, statements: Sequence[ast.stmt], body: Any, following: Any, after: Any) -> None:
        self._loops.append((following, after))
        self._b.position_at_end(body)
        self._run(statements)
        self._go(following)
        self._loops.pop()
        self._b.position_at_end(after)

    def _visit_For(self, node: ast.For) -> None:
        """Of range alone; the steps of a descending one must be a constant."""
        assert isinstance(node.iter, ast.Call)
        assert isinstance(node.target, ast.Name)
        bounds = [self._visit(argument) for argument in node.iter.args]
        start, end, step = (*((0, *bounds) if len(bounds) == 1 else bounds), 1)[:3]
        b, start, end = self._b, self._values.convert(start, I64), self._values.convert(end, I64)
        test, body, following, after = (b.append_basic_block() for _ in range(4))
        with b.goto_entry_block():
            place = b.alloca(I64)
        b.store(start, place)
        b.branch(test)
        b.position_at_end(test)
        index = b.load(place)
        descends = not isinstance(step, ir.Value) and step < 0
        b.cbranch(b.icmp_signed(">" if descends else "<", index, end), body, after)
        b.position_at_end(following)
        b.store(b.add(b.load(place), self._values.convert(step, I64)), place)
        b.branch(test)
        b.position_at_end(body)
        self._assign(node.target.id, index)
        self._loop(node.body, b.block, following, after)

    def _visit_Break(self, node: ast.Break) -> None:
        self._b.branch(self._loops[-1][1])

    def _visit_Continue(self, node: ast.Continue) -> None:
        self._b.branch(self._loops[-1][0])

    def _visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._b.ret_void()
        else:
            self._b.ret(self._values.convert(self._visit(node.value), self._target.ftype.return_type))

    # ---- expressions: LLVM's values, or Python's where they are constants

    def _visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def _visit_Name(self, node: ast.Name) -> Any:
        if node.id in self._places:
            return self._b.load(self._places[node.id])
        if node.id in self._names:
            return self._names[node.id]
        if hasattr(builtins, node.id):
            return getattr(builtins, node.id)
        raise self._error(node, "not known here")

    def _visit_Attribute(self, node: ast.Attribute) -> Any:
        return getattr(self._visit(node.value), node.attr)

    def _visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self._visit(node.operand)
        if not isinstance(value, ir.Value):
            return PYTHON_OPERATORS[type(node.op)](value)
        if isinstance(node.op, ast.Not):
            return self._b.not_(self._values.as_truth(value))
        return self._b.neg(value) if value.type == I64 else self._b.fneg(value)

    def _visit_BinOp(self, node: ast.BinOp) -> Any:
        return self._values.operate(type(node.op), self._visit(node.left), self._visit(node.right))

    def _visit_Compare(self, node: ast.Compare) -> Any:
        if len(node.ops) != 1:
            raise self._error(node, "more than two compared")
        return self._values.compare(type(node.ops[0]), self._visit(node.left), self._visit(node.comparators[0]))

    def _visit_BoolOp(self, node: ast.BoolOp) -> Any:
        is_and, value = isinstance(node.op, ast.And), self._truth(node.values[0])
        for item in node.values[1:]:
            branches = partial(self._truth, item), lambda: not is_and
            value = self._values.choose(value, *(branches if is_and else branches[::-1]))
        return value

    def _visit_IfExp(self, node: ast.IfExp) -> Any:
        return self._values.choose(
            self._truth(node.test), lambda: self._visit(node.body), lambda: self._visit(node.orelse)
        )

    def _truth(self, node: ast.AST) -> Any:
        value = self._visit(node)
        return self._values.as_truth(value) if isinstance(value, ir.Value) else value

    def _visit_Call(self, node: ast.Call) -> Any:
        function, values = self._visit(node.func), [self._visit(argument) for argument in node.args]
        if isinstance(function, Intrinsic | Part):
            if len(values) != len(function.arguments):
                raise self._error(node, f"{len(values)} arguments, not {len(function.arguments)}")
            kinds = zip(values, function.arguments)
            values = [value if kind is None else self._values.convert(value, kind) for value, kind in kinds]
            if isinstance(function, Intrinsic):
                return function.emit(self._b, *values)
            return self._b.call(self._part(function), values)
        if not any(isinstance(value, ir.Value) for value in values):
            return function(*values)
        if function in CASTS:
            return self._values.convert(values[0], CASTS[function], is_explicit=True)
        if function in MATH:
            return self._values.apply(*MATH[function], values[0])
        if function is builtins.min or function is builtins.max:
            return reduce(partial(self._values.better, ast.Lt if function is builtins.min else ast.Gt), values)
        raise self._error(node, "not translated")

    def _part(self, part: Part) -> Any:
        module, name = self._target.module, part.function.__name__
        if name not in module.globals:
            _emit(module, part.function, name, part.result, part.arguments).linkage = "internal"
        return module.globals[name]

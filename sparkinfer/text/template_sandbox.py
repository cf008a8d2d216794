"""Runs a chat template that came with a model file, safely and within limits. Knows Jinja; never a message.

The language is the one that Hugging Face templates are written in: trim_blocks and lstrip_blocks, loop controls,
`{% generation %}`, tojson without escapes, raise_exception, strftime_now, in Jinja's immutable sandbox.

Limits are counted in steps (loop iterations and calls) and characters, not in seconds: the same request then fails or
passes on every machine, and no timer, signal or trace function is needed, so any thread may render. The count is put
into the template when it is compiled: every loop runs over a counting iterator, every call passes through the sandbox.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 2_000_000  # about one second; a conversation of 1,000 turns takes a few thousand
MAX_CHARACTERS = 64 * 1024 * 1024  # of one string or of the whole prompt

_HUGE_WIDTH = re.compile(r"[%{][^%{}]*\d{6}")  # of a format specification
_TAKES_WIDTH = frozenset({"center", "expandtabs", "indent", "ljust", "rjust", "zfill"})
_TAKES_FORMAT = frozenset({"format", "format_map"})

_steps_left: ContextVar[int] = ContextVar("steps_left")

# What a template can raise by itself besides Jinja's own errors: None + "x", 1 / 0, {}["a"], endless recursion.
TEMPLATE_ERRORS = (
    TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError,
)

# What compiling one can raise: Jinja's parser and Python's compiler both give up on deep nesting, each in its own way,
# and Python on numbers of thousands of digits.
COMPILE_ERRORS = (TemplateError, SyntaxError, ValueError, RecursionError, MemoryError)


class TemplateLimitError(TemplateRuntimeError):
    """The template did more work than any conversation needs."""


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks training targets; its body is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _CountSteps(NodeTransformer):
    """Puts the counting iterator under every loop and the length check around every concatenation."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return nodes.Filter(node, "_bounded", [], [], None, None, lineno=node.lineno)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment; one instance serves any number of templates and threads."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
        )
        for name in ("center", "format", "indent", "replace"):
            self.filters[name] = _growth_limited(name, self.filters[name])
        self.filters["tojson"] = _tojson
        self.filters["_counted"] = _counted
        self.filters["_bounded"] = _bounded
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def compile_template(self, source: str) -> Template:
        """Raises one of COMPILE_ERRORS."""
        tree = _CountSteps().visit(self.parse(source))
        return Template.from_code(self, self.compile(tree), self.make_globals(None), None)

    def render(self, template: Template, variables: dict[str, Any]) -> str:
        """Raises one of TEMPLATE_ERRORS."""
        token = _steps_left.set(MAX_STEPS)
        try:
            return "".join(_limited(template.generate(variables)))
        finally:
            _steps_left.reset(token)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _take_step()
        method = getattr(obj, "__wrapped__", obj)  # Jinja wraps str.format
        if isinstance(getattr(method, "__self__", None), str):
            _check_growth(method.__name__, method.__self__, [*args, *kwargs.values()])
        return _bounded(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and not _is_small_product(left, right):
            raise TemplateLimitError("The chat template repeats a value too many times.")
        if operator == "**" and not _is_small_power(left, right):
            raise TemplateLimitError("The chat template computes a power that is too large.")
        if operator == "%" and isinstance(left, str):
            _check_growth("format", left, ())
        return _bounded(super().call_binop(context, operator, left, right))

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"The chat template reads {attribute!r} of a {type(obj).__name__}, which is not allowed.")


def _take_step() -> None:
    left = _steps_left.get(MAX_STEPS) - 1
    if left < 0:
        raise TemplateLimitError(f"The chat template takes more than {MAX_STEPS} steps.")
    _steps_left.set(left)


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _take_step()
        yield value


def _bounded(value: Any) -> Any:
    if isinstance(value, (str, list, tuple)) and len(value) > MAX_CHARACTERS:
        raise TemplateLimitError(f"The chat template builds a value longer than {MAX_CHARACTERS}.")
    return value


def _check_growth(name: str, text: Any, args: Sequence[Any]) -> None:
    """Refuse a string method or filter of that name whose result would be longer than MAX_CHARACTERS."""
    if name in _TAKES_WIDTH:
        too_large = any(isinstance(arg, int) and abs(arg) > MAX_CHARACTERS for arg in args)
    elif name in _TAKES_FORMAT:
        too_large = isinstance(text, str) and _HUGE_WIDTH.search(text) is not None
    elif name == "replace" and isinstance(text, str) and len(args) >= 2:
        old, new = str(args[0]), str(args[1])
        too_large = len(text) + text.count(old) * len(new) > MAX_CHARACTERS
    else:
        return
    if too_large:
        raise TemplateLimitError(f"The chat template uses {name} with an argument that is too large.")


def _growth_limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with the check before it; attributes that tell Jinja how to call it are kept."""

    @functools.wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        first = 1 if hasattr(function, "jinja_pass_arg") else 0
        _check_growth(name, args[first], [*args[first + 1:], *kwargs.values()])
        return _bounded(function(*args, **kwargs))

    return limited


def _limited(chunks: Iterable[str]) -> Iterator[str]:
    length = 0
    for chunk in chunks:
        length += len(chunk)
        if length > MAX_CHARACTERS:
            raise TemplateLimitError(f"The chat template writes more than {MAX_CHARACTERS} characters.")
        yield chunk


def _is_small_product(left: Any, right: Any) -> bool:
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return abs(left) < 2**64 and abs(right) < 2**64
    sizes = [len(value) if isinstance(value, (str, list, tuple)) else value for value in (left, right)]
    return not all(isinstance(size, int) for size in sizes) or sizes[0] * sizes[1] <= MAX_CHARACTERS


def _is_small_power(left: Any, right: Any) -> bool:
    return isinstance(left, (int, float)) and isinstance(right, (int, float)) and abs(left) < 2**32 and abs(right) <= 64


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as `json.dumps` writes it, keys in the client's order; Jinja's own filter would escape HTML."""
    _check_growth("indent", "", (indent,))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)

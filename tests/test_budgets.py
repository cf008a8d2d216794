"""Budgets of size, kept as a test because a sentence does not hold them. A raise needs a reason beside it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES, MAX_KERNEL_FILE_LINES = 300, 400
MAX_FUNCTION_LINES, MAX_KERNEL_LINES = 40, 100
MAX_CONSTRUCTOR_PARAMETERS = 6
MAX_OWN_IMPORTS = 12
MAX_BOOLEAN_CONSTEXPRS = 4

ALLOWED: dict[str, str] = {}  # "path" or "path::function" -> reason

PACKAGES = ("sparkinfer", "kernels", "ipc", "workers")
FILES = [ROOT / "supervisor.py", *(p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py")))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_jitted(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the end."""
    body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_is_small(path: Path) -> None:
    limit = MAX_KERNEL_FILE_LINES if path.is_relative_to(ROOT / "kernels") else MAX_FILE_LINES
    assert len(path.read_text().splitlines()) <= limit or name_of(path) in ALLOWED


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_functions_are_small(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            limit = MAX_KERNEL_LINES if is_jitted(node) else MAX_FUNCTION_LINES
            where = f"{name_of(path)}::{node.name}"
            assert body_lines(node) <= limit or where in ALLOWED, f"{where}: {body_lines(node)} lines"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_constructors_take_few_parameters(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            parameters = len(node.args.args) + len(node.args.kwonlyargs) - 1
            assert parameters <= MAX_CONSTRUCTOR_PARAMETERS or name_of(path) in ALLOWED, name_of(path)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_know_few_others(path: Path) -> None:
    own = {
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES
    }
    is_process = path.is_relative_to(ROOT / "workers") or path.name == "supervisor.py"  # these wire many small parts
    assert len(own) <= (2 if is_process else 1) * MAX_OWN_IMPORTS, sorted(own)


@pytest.mark.parametrize("path", [p for p in FILES if p.is_relative_to(ROOT / "kernels")], ids=name_of)
def test_kernels_are_not_families(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and is_jitted(node):
            flags = [
                a.arg for a in node.args.args
                if a.annotation is not None and "constexpr" in ast.unparse(a.annotation)
                and a.arg.upper() == a.arg and a.arg.startswith(("HAS_", "IS_", "USE_", "WITH_"))
            ]
            assert len(flags) <= MAX_BOOLEAN_CONSTEXPRS, f"{name_of(path)}::{node.name}: {flags}"

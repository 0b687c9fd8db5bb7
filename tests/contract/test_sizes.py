"""Check the length of functions and files."""

from __future__ import annotations

import ast

from tests.conftest import REPOSITORY

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 400


def too_long(name: str, source: str) -> list[str]:
    """Return what is too long in a file, with its number of lines."""
    long = [f"{name}: {lines} lines"] if (lines := source.count("\n")) > MAX_FILE_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                long.append(f"{name}: {node.name}, {lines} lines")
    return long


def test_nothing_is_too_long() -> None:
    files = [
        path
        for folder in ("flows", "tasks", "tvmflow", "bench", "tests")
        for path in (REPOSITORY / folder).rglob("*.py")
    ]
    assert len(files) > 200
    assert [line for path in sorted(files) for line in too_long(path.name, path.read_text())] == []


def test_what_is_too_long_is_found() -> None:
    function = "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES
    assert too_long("a.py", function) == [f"a.py: f, {MAX_FUNCTION_LINES + 1} lines"]
    assert too_long("a.py", "x = 1\n" * (MAX_FILE_LINES + 1)) == [f"a.py: {MAX_FILE_LINES + 1} lines"]
    assert not too_long("a.py", "def f():\n" + "    x = 1\n" * (MAX_FUNCTION_LINES - 1))

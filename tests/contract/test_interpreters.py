"""Test that no Python that a command starts imports from the folder in which the user happens to be."""

from __future__ import annotations

import ast

from tests.conftest import REPOSITORY


def _commands(tree: ast.AST) -> list[ast.List]:
    """Return the list literals that start a Python with a module or code."""
    found = []
    for node in ast.walk(tree):
        words = [part.value for part in getattr(node, "elts", []) if isinstance(part, ast.Constant)]
        if isinstance(node, ast.List) and {"-m", "-c"} & set(words) and "python" in ast.unparse(node.elts[:-1][0]):
            found.append(node)
        elif isinstance(node, ast.List) and {"-m", "-c"} & set(words) and "sys.executable" in ast.unparse(node):
            found.append(node)
    return found


def test_no_python_searches_modules_in_the_current_folder() -> None:
    seen, wrong = 0, []
    for package in ("tvmflow", "flows", "tasks"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            for command in _commands(ast.parse(text)) if '"-m"' in text or '"-c"' in text else ():
                seen += 1
                if "'-P'" not in ast.unparse(command):
                    wrong.append(f"{path.relative_to(REPOSITORY)}:{command.lineno}")
    assert seen >= 14 and wrong == [], f"-P is missing before -m or -c: {wrong}"

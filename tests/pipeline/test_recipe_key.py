"""Test the recipe key: equal if and only if everything that determines the outputs is equal."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import REPOSITORY
from tvmflow.pipeline import recipe_key as recipe
from tvmflow.pipeline.recipe_key import changed_parts, code_of, forget_code, make_recipe, recipe_key

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
PARTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)


@given(PARTS, PARTS, PARTS, PARTS)
def test_keys_are_equal_iff_recipes_are(
    a: dict[str, Any], b: dict[str, Any], c: dict[str, Any], d: dict[str, Any]
) -> None:
    one = make_recipe("s", {}, a, {}, {}) | {"toolchain": c}
    two = make_recipe("s", {}, b, {}, {}) | {"toolchain": d}
    same_types = repr(_sorted(one)) == repr(_sorted(two))
    assert (recipe_key(one) == recipe_key(two)) == same_types


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _sorted(value[k]) for k in sorted(value)}  # not a list: [] and {} are different values
    return [_sorted(v) for v in value] if isinstance(value, list) else value


@given(PARTS, PARTS)
def test_changed_parts_is_empty_iff_nothing_changed(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert (changed_parts({"params": a}, {"params": b}) == []) == (repr(_sorted(a)) == repr(_sorted(b)))


def test_changed_parts_names_the_leaf() -> None:
    old = make_recipe("tune", {"graph_pack": "1"}, {"trials": 16}, {"tvm": "0.26.0"}, {"tasks/tune.py": "1"})
    new = make_recipe("tune", {"graph_pack": "2"}, {"trials": 32}, {"tvm": "0.27.0"}, {"tasks/tune.py": "2"})
    assert changed_parts(old, new) == [
        "code.tasks/tune.py: changed",
        "inputs.graph_pack: changed",
        "params.trials: 16 -> 32",
        "toolchain.tvm: 0.26.0 -> 0.27.0",
    ]


def test_code_follows_imports_inside_functions_and_leaves_out_what_only_watches() -> None:
    files = code_of("tasks.build")
    assert "tvmflow/schedules/cpu/convolution.py" in files  # through a function's import of building, then passes
    assert not [name for name in files if name.startswith(("tvmflow/tracking", "tvmflow/cli", "tvmflow/report"))]
    assert "tvmflow/devices/session.py" not in files and "tvmflow/sources/download.py" not in files


def _of_the_tree(path: Path) -> tuple[set[str], set[str]]:
    """Return what the syntax tree of a file imports of ours, anywhere and when it is loaded."""
    tree = ast.parse(path.read_bytes())

    def names(nodes: Iterable[ast.AST]) -> set[str]:
        found = set()
        for node in nodes:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        return {name for name in found if name.startswith(("tasks", "tvmflow"))}

    return names(ast.walk(tree)), names(tree.body)


def test_all_imports_that_the_syntax_tree_has_are_found() -> None:
    files = [path for package in ("tasks", "tvmflow") for path in (REPOSITORY / package).rglob("*.py")]
    assert len(files) > 300
    for path in files:
        anywhere, loaded = recipe._imports_of(path.stem, path.read_bytes())
        in_tree, loaded_in_tree = _of_the_tree(path)
        assert in_tree <= set(anywhere) and loaded_in_tree <= set(loaded), path
        own = {name for name in {*anywhere} - in_tree if name.startswith(("tasks", "tvmflow"))}
        assert not own, (path, own)


@pytest.mark.parametrize(
    ("source", "anywhere", "loaded"),
    [
        (b"import tasks.b as c, d  # why\n", ["tasks.b", "d"], ["tasks.b", "d"]),
        (
            b"from tasks import (  # why\n    b,\n    c as d,  # (not) this\n)\n",
            ["tasks", "tasks.b", "tasks.c"],
            ["tasks", "tasks.b", "tasks.c"],
        ),
        (b"def f():\n    from tvmflow import b\n", ["tvmflow", "tvmflow.b"], []),
        (b"if x:\n\timport tasks\n", ["tasks"], []),
        (b"import numpy\nimport tvmflow_plugin\n", [], []),  # not ours
        (b'"""\nfrom one import to the next\nimport of all\n"""\n', [], []),
        (b"important = 1\nfromage = 2\n", [], []),
    ],
)
def test_import_statements(source: bytes, anywhere: list[str], loaded: list[str]) -> None:
    assert recipe._imports_of("one", source) == (tuple(anywhere), tuple(loaded))


def test_a_stage_does_not_depend_on_code_that_it_does_not_use() -> None:
    assert not [name for name in code_of("tasks.fetch") if name.startswith(("tvmflow/tuning", "tvmflow/passes"))]


def test_code_that_was_forgotten_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "tasks"
    package.mkdir()
    one, two = package / "one.py", package / "two.py"
    one.write_text("x = 1\n")
    two.write_text("y = 1\n")
    monkeypatch.setattr(recipe, "CODE_ROOT", tmp_path)
    assert sorted(code_of("tasks.one")) == ["tasks/one.py"]
    one.write_text("import tasks.two\n")
    forget_code()
    try:
        assert sorted(code_of("tasks.one")) == ["tasks/one.py", "tasks/two.py"]
    finally:
        code_of.cache_clear()
        recipe._source_of.cache_clear()


def test_a_long_value_is_shown_where_it_differs() -> None:
    old, new = {"driver": "a" * 100 + " 1.0 " + "b" * 100}, {"driver": "a" * 100 + " 2.0 " + "b" * 100}
    [line] = changed_parts(old, new)
    assert " 1.0 b" in line and " 2.0 b" in line and len(line) < 140
    assert changed_parts({"driver": "x" * 70}, {"driver": "y" * 70}) == [f"driver: {'x' * 57}... -> {'y' * 57}..."]
    assert changed_parts({"driver": "x" * 100}, {"driver": "x" * 101}) != []

"""The recipe key: equal exactly when what decides the bytes is equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmflow import recipe
from tvmflow.recipe import changed_parts, code_of, forget_code, make_recipe, recipe_key

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
        "code.tasks/tune.py: changed", "inputs.graph_pack: changed", "params.trials: 16 -> 32",
        "toolchain.tvm: 0.26.0 -> 0.27.0",
    ]  # fmt: skip


def test_code_follows_imports_inside_functions_and_leaves_out_what_only_watches() -> None:
    files = code_of("tasks.build")
    assert "tvmflow/templates/window.py" in files  # through a function's import of building, then passes
    assert not [name for name in files if name.startswith(("tvmflow/ledger", "tvmflow/cli", "tvmflow/report"))]
    assert "tvmflow/devices/session.py" not in files and "tvmflow/sources/download.py" not in files


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

"""Test the wheel: its metadata, and the names of its packages."""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib.util
import re
import sys
import tomllib
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]


def test_the_license_is_the_whole_text_and_named_in_the_metadata() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    text = (REPOSITORY / "LICENSE").read_text()
    assert project["license"] == "Apache-2.0" and project["license-files"] == ["LICENSE"]
    assert "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
    assert not [line for line in project["classifiers"] if line.startswith("License ::")]  # the expression replaces it


def test_every_package_of_the_wheel_is_typed() -> None:
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert [name for name in wheel["packages"] if not (REPOSITORY / name / "py.typed").is_file()] == []


def test_the_wheel_has_the_runtime_in_c_where_it_is_looked_for() -> None:
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"runtime": "tvmflow/_runtime"}
    assert '"tvmflow" / "_runtime"' in (REPOSITORY / "tvmflow" / "support" / "paths.py").read_text()
    assert (REPOSITORY / "runtime" / "agent" / "agent.c").is_file()
    assert {path.suffix for path in (REPOSITORY / "runtime" / "src").iterdir()} == {".c", ".h"}


@pytest.fixture
def layout(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return hatch_build.py, which runs where wheels are built."""
    name = "hatchling.builders.hooks.plugin.interface"
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(BuildHookInterface=object))  # type: ignore[arg-type]
    spec = importlib.util.spec_from_file_location("hatch_build", REPOSITORY / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _sources() -> list[Path]:
    return sorted(path for name in ("tvmflow", "tasks", "flows") for path in (REPOSITORY / name).rglob("*.py"))


def test_no_module_of_the_wheel_is_imported_by_the_names_of_the_repository(layout: Any) -> None:
    """All imports are renamed, and text that names a module is asked of own_module."""
    modules = {
        path.relative_to(REPOSITORY).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        for path in _sources()
    }
    named = {name for name in modules if name.split(".")[0] in layout.MOVED and "." in name}
    wrong, imports = [], 0
    for path in _sources():
        name, source = path.relative_to(REPOSITORY).as_posix(), path.read_bytes()
        if not re.search(rb"\b(tasks|flows)\b", source):
            continue
        tree = ast.parse(layout.rewritten(name, source))
        asked = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            for inner in node.args
            if isinstance(node.func, ast.Name) and node.func.id == "own_module"
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                found = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
                imports += sum(one.startswith(("tvmflow.tasks", "tvmflow.flows")) for one in found)
                wrong += [f"{name}: {one}" for one in found if one.split(".")[0] in layout.MOVED]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in asked:
                wrong += [f"{name}: {node.value!r}"] if node.value.split(":")[0] in named else []
    assert not wrong and imports > 100


def test_the_wheel_has_other_names_and_a_record_of_them(layout: Any, tmp_path: Path) -> None:
    path, record = tmp_path / "a.whl", "tvmflow-1.dist-info/RECORD"
    files = {
        "tasks/table.py": "from tasks import tune\nfrom tasksets import x\n    import flows.sweep\n",
        "tvmflow/api.py": "x = 'from tasks'\n    from flows.sweep import run  # from flows.sweep\n",
        "tvmflow/setup/deployments.yaml": "  - flows.heartbeats.watch_runs: {}\n    entrypoint: flows.sweep.sweep\n",
        "tvmflow/data.txt": "from tasks import x\n",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in {**files, record: "wrong"}.items():
            wheel.writestr(name, text)
    layout.rewrite_wheel(path)
    with zipfile.ZipFile(path) as wheel:
        found = {name: wheel.read(name).decode() for name in wheel.namelist()}
    rows = dict(line.split(",", 1) for line in found.pop(record).splitlines())
    assert found == {
        "tvmflow/tasks/table.py": "from tvmflow.tasks import tune\nfrom tasksets import x\n"
        "    import tvmflow.flows.sweep\n",
        "tvmflow/api.py": "x = 'from tasks'\n    from tvmflow.flows.sweep import run  # from flows.sweep\n",
        "tvmflow/setup/deployments.yaml": "  - tvmflow.flows.heartbeats.watch_runs: {}\n"
        "    entrypoint: tvmflow.flows.sweep.sweep\n",
        "tvmflow/data.txt": "from tasks import x\n",
    }
    assert rows.pop(record) == "," and set(rows) == set(found)
    for name, text in found.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        assert rows[name] == f"sha256={digest},{len(text.encode())}"

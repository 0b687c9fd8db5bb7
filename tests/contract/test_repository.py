"""The repository agrees with itself: stages in their places, documentation with the disk, dvc.yaml with tasks/."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.pipeline import pipeline, render
from tasks.table import STAGES
from tests.conftest import REPOSITORY
from tvmflow.config.params import STAGE_NAMES, Params
from tvmflow.pipeline.recipe_key import code_of

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
TRACKED = set(
    subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.split("\n")
)


@pytest.mark.parametrize("name", STAGE_NAMES)
def test_every_stage_has_its_places(name: str) -> None:
    assert list(STAGES) == list(STAGE_NAMES)
    assert STAGES[name].name == name and STAGES[name].module == f"tasks.{name}"
    assert (REPOSITORY / "tasks" / f"{name}.py").is_file()
    assert name in Params.model_fields
    assert name in yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]


def test_dvc_yaml_is_what_the_table_of_stages_says() -> None:
    assert (REPOSITORY / "dvc.yaml").read_text() == render(), "run 'make pipeline'"


@pytest.mark.parametrize("name", STAGE_NAMES)
def test_dvc_depends_on_the_code_and_inputs_of_the_recipe_key(name: str) -> None:
    deps = [str(dep) for dep in pipeline()["stages"][name]["do"]["deps"]]
    for file in code_of(STAGES[name].module, STAGES[name].runs):
        assert any(file == dep or file.startswith(f"{dep}/") for dep in deps), file
    for source in STAGES[name].inputs:
        assert any(dep.startswith(f"artifacts/{source}/") for dep in deps), source


def test_importing_the_stages_and_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys, tasks.table, tvmflow.cli\n"
        "print([m for m in ('tvm', 'torch', 'keras', 'prefect', 'mlflow', 'dvc', 'onnx', 'sklearn') if m "
        "in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _commands() -> set[str]:
    from typer.main import get_command

    from tvmflow.cli import app

    return set(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_documents_name_only_what_exists(document: Path) -> None:
    text = document.read_text()
    for path in re.findall(r"`((?:tvmflow|tasks|flows|tests|docs|bench|data|\.ci)/[\w./-]*?)/?`", text):
        assert (REPOSITORY / path).exists(), f"{document.name} names {path}"
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (document.parent / target).exists(), f"{document.name} links {target}"
    for command in re.findall(
        r"(?<![\w/.])(?<!from )tvmflow ([a-z]+)\b",
        re.sub(r"\[?tvmflow\[", "", "\n".join(re.findall(r"`[^`]*`|^ {4}.*|^```[\s\S]*?^```", text, re.M))),
    ):
        assert command in _commands() or command in ("report",), f"{document.name} names 'tvmflow {command}'"
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(), re.M), (
            f"{document.name} names make {target}"
        )
    for module in re.findall(r"python -m ((?:tasks|flows|tvmflow|bench)[\w.]*)", text):
        assert (REPOSITORY / Path(*module.split(".")).with_suffix(".py")).exists() or (
            REPOSITORY / Path(*module.split("."))
        ).is_dir()


def test_every_command_is_in_the_readme() -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert [name for name in sorted(_commands()) if f"`{name}" not in text and f"tvmflow {name}" not in text] == []


def _keys(model: Any, prefix: str = "") -> list[str]:
    return [f"{prefix}{name}" for name in model.model_fields]


def test_every_key_of_params_is_documented() -> None:
    text = (REPOSITORY / "docs" / "params.md").read_text()
    for name, field in Params.model_fields.items():
        assert f"`{name}" in text, name
        if hasattr(field.annotation, "model_fields"):
            missing = [key for key in _keys(field.annotation) if f"`{key}`" not in text and f".{key}`" not in text]
            assert missing == [], f"{name}: {missing}"


def test_the_documented_defaults_are_those_of_the_code() -> None:
    text = (REPOSITORY / "docs" / "params.md").read_text()
    block = re.search(r"## Defaults.*?```yaml\n(.*?)```", text, re.S)
    assert block
    written = yaml.safe_load(block[1])
    default = Params.model_validate({})
    assert Params.model_validate(written) == default
    said = {name: set(value) for name, value in written.items()}
    for name, field in Params.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            assert said[name] == set(field.annotation.model_fields), name


def test_the_documented_tree_is_the_tree_on_disk() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    block = re.search(r"## The tree\n+```\n(.*?)```", text, re.S)
    assert block
    named = {line.split()[0].rstrip("/") for line in block[1].splitlines() if line and not line.startswith(" ")}
    folders = {Path(file).parts[0] for file in TRACKED if "/" in file and not file.startswith(".")}
    assert folders <= named | {"artifacts", "mlruns"}, folders - named
    inside = {line.split()[0].rstrip("/") for line in block[1].splitlines() if line.startswith("  ") and line.strip()}
    assert {p.name for p in (REPOSITORY / "tvmflow").iterdir() if p.is_dir() and p.name != "__pycache__"} <= inside


def test_ci_runs_the_readmes_test_command_and_nothing_else() -> None:
    lines = [
        line for line in (REPOSITORY / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert lines[-1] == "make test" and len([line for line in lines if "make" in line]) == 1
    assert "make test" in (REPOSITORY / "README.md").read_text()


def test_constraints_hold_what_is_known_to_break() -> None:
    pins = dict(
        line.split("==")
        for line in (REPOSITORY / "constraints.txt").read_text().splitlines()
        if "==" in line and "#" not in line
    )
    assert pins["apache-tvm-ffi"] == "0.1.14.post1"
    assert pins["fastapi"].startswith("0.150") and pins["SQLAlchemy"].startswith("2.0")
    assert not [name for name, version in pins.items() if "+" in version]
    assert "://" not in (REPOSITORY / "constraints.txt").read_text()


def test_nothing_evaluates_or_unpickles() -> None:
    for folder in ("tvmflow", "tasks", "flows"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            text = path.read_text()
            assert not re.search(
                r"(?<![\w.])(eval|exec)\(|pickle\.loads?\(|weights_only=False|allow_pickle=True|shell=True", text
            ), path

"""Check the repository for consistency: stages, documentation and files, dvc.yaml and tasks/."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.pipeline import pipeline, render
from tasks.table import STAGES
from tests.conftest import REPOSITORY
from tvmflow.config.params import STAGE_NAMES, Params, load_params
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
    assert (REPOSITORY / "dvc.yaml").read_text() == render(load_params(REPOSITORY / "params.yaml")), (
        "run 'make pipeline'"
    )


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


@functools.cache
def _program() -> Any:
    from typer.main import get_command

    from tvmflow.cli import app

    return get_command(app)


def _commands() -> set[str]:
    return set(_program().commands)


def _code(text: str) -> Iterator[str]:
    """Yield the spans and lines of code of a Markdown text."""
    blocks = re.compile(r"^```[\s\S]*?^```|^ {4}.*", re.M)
    yield from re.findall(r"`([^`]+)`", blocks.sub("", text))
    for block in blocks.findall(text):
        yield from block.splitlines()


def _unknown_commands(code: str) -> list[str]:
    """Return the commands and options of tvmflow that a line of code names and the program lacks."""
    unknown = []
    for name, rest in re.findall(r"(?<![\w/.<-])(?<!from )tvmflow ([a-z]+(?:-[a-z]+)*)\b([^#&|;]*)", code):
        if name not in _commands():
            unknown.append(name)
            continue
        command, words = _program().commands[name], rest.replace(",", " ").split()
        if hasattr(command, "commands") and words:
            if words[0] not in command.commands:
                unknown.append(f"{name} {words[0]}")
                continue
            command = command.commands[words[0]]
        options = {option for parameter in (*command.params, *_program().params) for option in parameter.opts}
        unknown += [word for word in words if re.fullmatch(r"--?[a-zA-Z][\w-]*", word) and word not in options]
    return unknown


def _headings(text: str) -> set[str]:
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)$", text, re.M)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_documents_name_only_what_exists(document: Path) -> None:
    text = document.read_text()
    folders = "tvmflow|tasks|flows|tests|docs|bench|data|examples/[a-z-]+|runtime|\\.ci"
    for path in re.findall(rf"`((?:{folders})/[\w./-]*?)/?`", text):
        assert (REPOSITORY / path).exists(), f"{document.name} names {path}"
    for path in re.findall(r"`((?:canonicalize|layout|legalize|fuse|kernel)/\w+\.py)`", text):
        assert (REPOSITORY / "tvmflow" / "passes" / path).exists(), f"{document.name} names the pass {path}"
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        page = document.parent / target if target else document
        assert page.exists(), f"{document.name} links {target}"
        assert not heading or heading in _headings(page.read_text()), f"{document.name} links {target}#{heading}"
    for code in _code(text):
        assert _unknown_commands(code) == [], f"{document.name} names 'tvmflow' with what it lacks: {code}"
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(), re.M), (
            f"{document.name} names make {target}"
        )
    for module in re.findall(r"python -m ((?:tasks|flows|tvmflow|bench)[\w.]*)", text):
        assert (REPOSITORY / Path(*module.split(".")).with_suffix(".py")).exists() or (
            REPOSITORY / Path(*module.split("."))
        ).is_dir()


def test_unknown_commands_and_options_are_found() -> None:
    assert _unknown_commands("tvmflow run cats --dry-run && tvmflow keys new FILE") == []
    assert _unknown_commands("tvmflow rnu cats") == ["rnu"] and _unknown_commands("tvmflow keys make FILE") == [
        "keys make"
    ]
    assert _unknown_commands("tvmflow run cats --dryrun -o x  # --other") == ["--dryrun", "-o"]


def test_prose_is_at_most_120_columns_wide() -> None:
    long = [
        f"{document.name}:{number}"
        for document in DOCUMENTS
        for number, line in enumerate(document.read_text().splitlines(), 1)
        if len(line) > 120 and not line.startswith("|")
    ]
    assert long == []


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

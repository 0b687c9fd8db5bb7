"""Check that the CI workflow and the Dockerfile name existing commands, files and versions."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.contract.test_repository import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
INSTRUCTIONS = {"FROM", "ARG", "ENV", "RUN", "COPY", "USER", "WORKDIR", "ENTRYPOINT", "CMD", "LABEL"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_valid(path: Any) -> None:
    data = yaml.safe_load(path.read_text())
    assert set(data) == {"name", True, "permissions", "concurrency", "jobs"}  # `on` is YAML 1.1's True
    assert {"push", "pull_request"} <= set(data[True]) and data["permissions"] == {"contents": "read"}
    for name, job in data["jobs"].items():
        assert re.fullmatch(r"[a-z-]+", name) and job["runs-on"].startswith("ubuntu-") and job["timeout-minutes"] > 0
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert "uses" not in step or re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]), step


def test_ci_runs_make_test_with_a_python_that_is_supported() -> None:
    [path] = WORKFLOWS
    jobs = yaml.safe_load(path.read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = {target for command in commands for target in re.findall(r"make ([a-z-]+)", command)}
    assert "test" in targets
    makefile = (REPOSITORY / "Makefile").read_text()
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.M)] == []
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    versions = {
        step["with"]["python-version"]
        for job in jobs.values()
        for step in job["steps"]
        if "with" in step and "python-version" in step["with"]
    }
    assert versions == {project["requires-python"].removeprefix(">=")}


def test_the_image_is_built_from_what_there_is() -> None:
    text = (REPOSITORY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} <= INSTRUCTIONS and lines[0].startswith("FROM python:3.11")
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert [name for name in copied if not (REPOSITORY / name).exists()] == []
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == allowed
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["force-include"], *project["project"]["license-files"]} <= set(copied)
    assert any(line.startswith("USER ") for line in lines)

"""Render the job templates of Docker and Kubernetes with the variables of the page, and start the image's command."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import prefect
import pytest
import yaml
from prefect.utilities.templating import apply_values

from tests.conftest import REPOSITORY

WORKERS = "server/api/collections_data/views/aggregate-worker-metadata.json"
PAGE = (REPOSITORY / "docs" / "storage.md").read_text()
POOLS = re.findall(r"^```yaml\n# prefect work-pool create tvmflow --type (\w+)\n(.*?)^```", PAGE, re.M | re.S)


def _template(kind: str) -> dict[str, Any]:
    collections = json.loads((Path(prefect.__file__).parent / WORKERS).read_text())
    template: dict[str, Any] = collections[f"prefect-{kind}"][kind]["default_base_job_configuration"]
    return template


@pytest.mark.parametrize(("kind", "text"), POOLS, ids=[kind for kind, _text in POOLS])
def test_a_pool_of_the_page_is_rendered(kind: str, text: str) -> None:
    template, variables = _template(kind), yaml.safe_load(text)["work_pool"]["job_variables"]
    schema = template["variables"]
    assert set(variables) <= set(schema["properties"]), "Prefect ignores others"
    jsonschema.validate(variables, schema)
    defaults = {name: one["default"] for name, one in schema["properties"].items() if "default" in one}
    job = json.dumps(apply_values(template["job_configuration"], {**defaults, **variables}, remove_notset=True))
    assert f'"{variables["image"]}"' in job and '"PREFECT_FLOWS_HEARTBEAT_FREQUENCY"' in job and "{{" not in job


def test_both_kinds_are_on_the_page() -> None:
    assert [kind for kind, _text in POOLS] == ["docker", "kubernetes"]


@pytest.mark.parametrize(
    ("command", "runs"),
    [
        ("prefect flow-run execute", "prefect flow-run execute"),  # of Prefect's workers
        ("run digits --again", "tvmflow run digits --again"),
        ("--help", "tvmflow --help"),
    ],
)
def test_the_image_runs_commands_of_workers_and_of_users(command: str, runs: str, tmp_path: Path) -> None:
    [line] = re.findall(r"^ENTRYPOINT (.*)$", (REPOSITORY / "Dockerfile").read_text(), re.M)
    for program in ("prefect", "tvmflow"):
        (tmp_path / program).write_text('#!/bin/sh\necho "$(basename "$0") $@"\n')
        (tmp_path / program).chmod(0o755)
    words = [*json.loads(line), *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert done.stdout == f"{runs}\n"

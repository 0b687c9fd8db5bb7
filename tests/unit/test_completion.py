"""What the shell completes: cells of params.yaml, as every shell takes a word apart, without loading anything heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.test_repository import REPOSITORY

PARAMS = """
models:
  mine: {framework: onnx, weights: {file: mine.onnx}, input: {shape: [1, 4]}}
cells:
  fast: {model: mine, target: local-cpu, precision: int8}
"""


def _complete(root: Path, shell: str, words: str) -> list[str]:
    environment = {
        **os.environ, "_TVMFLOW_COMPLETE": f"complete_{shell}", "COMP_WORDS": f"tvmflow {words}",
        "COMP_CWORD": str(len(words.split())), "_TYPER_COMPLETE_ARGS": f"tvmflow {words}", "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "PYTHONPATH": str(REPOSITORY),
    }  # fmt: skip
    code = "import sys; sys.argv[0] = 'tvmflow'; from tvmflow.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    return [line.split('"')[1].replace("\\:", ":") if line.startswith('"') else line for line in done.stdout.split()]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    (folder / "params.yaml").write_text(PARAMS)
    return folder


def test_bash_gets_the_rest_of_a_cell_of_which_it_has_taken_pieces(root: Path) -> None:
    assert _complete(root, "bash", "run f") == ["fast"]
    assert "mine@local-cpu:int8" in _complete(root, "bash", "why mi")
    assert "@local-cpu:int8" in _complete(root, "bash", "run mine @")
    assert _complete(root, "bash", "run mine @ local-cpu : b") == ["bfloat16"]
    assert _complete(root, "bash", "add mine.onnx --target l") == ["local-cpu"]
    assert _complete(root, "bash", "add mine.onnx --precision i") == ["int8"]
    assert "int8" in _complete(root, "bash", "run fast mine @ local-cpu : i")


def test_other_shells_get_whole_cells(root: Path) -> None:
    assert any("mine@local-cpu:bfloat16" in line for line in _complete(root, "fish", "run mine@local-cpu:b"))


def test_without_a_workspace_or_with_a_broken_one_nothing_is_completed(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("models: 3")
    assert _complete(tmp_path, "bash", "run f") == []


def test_completion_loads_nothing_heavy() -> None:
    code = (
        "import sys, tvmflow.cli.completion, tvmflow.api\nfrom tvmflow.params import load_params\n"
        "print([m for m in ('tvm', 'numpy', 'torch', 'prefect', 'mlflow', 'dvc') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

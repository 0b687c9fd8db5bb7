"""Test shell completion: cells of params.yaml with the word splitting of every shell, without heavy imports."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
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
        **os.environ,
        "_TVMFLOW_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": f"tvmflow {words}",
        "COMP_CWORD": str(len(words.split())),
        "_TYPER_COMPLETE_ARGS": f"tvmflow {words}",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "PYTHONPATH": str(REPOSITORY),
    }
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


@pytest.fixture
def home(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without settings, `tvmflow` on the PATH of its shells, which start in the workspace."""
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'tvmflow'; from tvmflow.cli import main; main()"]
    (tmp_path / "tvmflow").write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    (tmp_path / "tvmflow").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name, value in {"HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY), "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(root)
    return tmp_path


def _script(shell: str) -> str:
    environment = {**os.environ, "_TVMFLOW_COMPLETE": f"source_{shell}"}
    return subprocess.run(["tvmflow"], env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_itself_completes_a_cell_between_its_pieces(home: Path) -> None:
    (home / "tvmflow.fish").write_text(_script("fish"))

    def completed(line: str) -> list[str]:
        code = f"source {home / 'tvmflow.fish'}; complete -C '{line}'"
        return subprocess.run(["fish", "--no-config", "-c", code], capture_output=True, text=True).stdout.splitlines()

    assert completed("tvmflow run fast mine@local-cpu:b") == ["mine@local-cpu:bfloat16"]
    assert "mine@local-cpu:int8" in completed("tvmflow why mine@l")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_itself_completes_a_cell_between_its_pieces(home: Path) -> None:
    script, line = home / "tvmflow.zsh", home / "line"
    widget = f"said() {{ print -r -- \"$BUFFER\" > {line}.new; mv {line}.new {line} }}; zle -N said; bindkey '^X' said"
    script.write_text(f"PS1=READY; autoload -Uz compinit; compinit -u -D\n{_script('zsh')}\n{widget}\n")
    assert _typed(f"source {script}\n", "tvmflow run fast mine@local-cpu:b\t\x18", line).split() == [
        "tvmflow",
        "run",
        "fast",
        "mine@local-cpu:bfloat16",
    ]
    assert _typed(f"source {script}\n", "tvmflow why mine@l\t\x18", line).strip() == "tvmflow why mine@local-cpu:"


def _typed(first: str, then: str, line: Path) -> str:
    """Type into an interactive zsh, the rest when it is ready; return what it writes into the file."""
    line.unlink(missing_ok=True)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("zsh", ["zsh", "-f", "-i"])  # noqa: S606  (no shell starts it: it is one)
    try:
        os.write(terminal, first.encode())
        shown, until = b"", time.monotonic() + 60
        while not line.exists() and time.monotonic() < until:
            if select.select([terminal], [], [], 0.05)[0]:
                shown += os.read(terminal, 65536)
            if then and b"READY" in shown:
                os.write(terminal, then.encode())
                then = ""
        assert line.exists(), shown
        return line.read_text()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def test_without_a_workspace_or_with_a_broken_one_nothing_is_completed(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("models: 3")
    assert _complete(tmp_path, "bash", "run f") == []


def test_completion_loads_nothing_heavy() -> None:
    code = (
        "import sys, tvmflow.cli.completion, tvmflow.api\nfrom tvmflow.config.params import load_params\n"
        "print([m for m in ('tvm', 'numpy', 'torch', 'prefect', 'mlflow', 'dvc') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

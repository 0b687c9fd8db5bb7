"""Follow docs/team.md word by word: real servers, two engineers of whom the first leaves, a worker, CI."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import requests
import yaml
from onnx import TensorProto, helper, numpy_helper

from tasks.table import STAGES
from tests.conftest import REPOSITORY, free_port
from tests.page_commands import PageCommands
from tvmflow.config.params import STAGE_NAMES

PAGE = (REPOSITORY / "docs" / "team.md").read_text(encoding="utf-8")
SECTIONS = (
    "Servers",
    "Everyone",
    "First engineer",
    "Second engineer",
    "Workers near devices",
    "Re-tune after an upgrade",
    "CI",
)
QUICK = {
    "tune": {"trials_per_workload": 2, "measure_min_ms": 5.0, "measure_repeats": 2, "max_drift": 1e9},
    "evaluate": {"turns": 8, "turn_ms": 5.0, "max_seconds": 2.0, "cold_starts": 1},
    "release": {"compare_rounds": 6, "max_slowdown": 1e9},
}
LONGEST_S = 500.0  # of a section
VARIABLES = {"MLFLOW_WORKERS": "1", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PYTHONPATH": str(REPOSITORY)}


def _scripts() -> dict[str, str]:
    """Return section -> its shell blocks as one script; YAML is added to params.yaml, as the page says."""
    found: dict[str, str] = {}
    for section in PAGE.split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        for language, block in re.findall(r"^```(sh|yaml)\n(.*?)^```", text, re.M | re.S):
            if language == "yaml":
                block = f"cat >> params.yaml <<'END'\n{block}{yaml.safe_dump(QUICK)}END\n"
            found[title] = found.get(title, "") + block
    return found


class Team:
    def __init__(self, root: Path) -> None:
        self.root, self.commands = root, PageCommands()
        mlflow, prefect = free_port(), free_port()
        self.servers = [f"http://127.0.0.1:{mlflow}/health", f"http://127.0.0.1:{prefect}/api/health"]
        self.scripts = _scripts()
        for there, here in (
            (" --allowed-hosts team-server:5000", ""),
            ("--host 0.0.0.0", "--host 127.0.0.1"),
            ("postgresql:///mlflow", f"sqlite:///{root}/mlflow.db"),
            ("postgresql+asyncpg:///prefect", f"sqlite+aiosqlite:///{root}/prefect.db"),
            ("team-server:5000", f"127.0.0.1:{mlflow}"),
            ("team-server:4200", f"127.0.0.1:{prefect}"),
            ("--port 5000", f"--port {mlflow}"),
            ("--port 4200", f"--port {prefect}"),
            ("git@git.example.com:team/phones.git", str(root / "phones.git")),
            ("/srv/tvmflow", str(root / "srv")),
        ):
            assert any(there in script for script in self.scripts.values()), f"{there} is not on the page"
            self.scripts = {title: script.replace(there, here) for title, script in self.scripts.items()}

    def follow(self, section: str, home: Path, place: str = ".") -> str:
        """Run the commands of a section in a place of somebody's home; what they leave running goes on."""
        return self.run(section, self.scripts[section], home, place)

    def run(self, name: str, script: str, home: Path, place: str) -> str:
        place_there = home / place
        place_there.mkdir(parents=True, exist_ok=True)
        (home / ".gitconfig").write_text("[user]\n name = a\n email = a@localhost\n[init]\n defaultBranch = main\n")
        everyone = "" if name == "Servers" else self.scripts["Everyone"]
        output = self.root / f"{name}.txt"
        own = {"HOME": str(home), "TVMFLOW_CACHE": str(home / "cache"), "DVC_SITE_CACHE_DIR": str(home / "dvc")}
        code, text = self.commands.run(everyone + script, place_there, VARIABLES | own, output, LONGEST_S)
        assert code == 0, f"{name}: exit {code}\n{text}"
        return text

    def wait_for_servers(self) -> None:
        deadline = time.monotonic() + 120
        for address in self.servers:
            while True:
                try:
                    if requests.get(address, timeout=2).ok:
                        break
                except requests.RequestException:
                    assert time.monotonic() < deadline, (self.root / "Servers.txt").read_text()
                    time.sleep(0.2)


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    team = Team(tmp_path)
    yield team
    team.commands.stop()


def write_model(path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", 64), ("y", 8)))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def test_every_section_is_followed() -> None:
    assert tuple(_scripts()) == SECTIONS


def test_a_team_works_as_the_page_says(team: Team, tmp_path: Path) -> None:
    subprocess.run(
        ["git", "init", "-q", "--bare", "--initial-branch", "main", str(tmp_path / "phones.git")], check=True
    )
    team.follow("Servers", tmp_path / "server")
    team.wait_for_servers()
    first, second = tmp_path / "first", tmp_path / "home of another" / "desk"
    first.mkdir()
    write_model(first / "cats.onnx")
    made = team.follow("First engineer", first)
    assert all(re.search(rf" {stage}: done", made) for stage in STAGE_NAMES), made
    assert list((tmp_path / "srv" / "dvc").rglob("*")) and list((tmp_path / "srv" / "mlflow").rglob("library.so"))
    first.rename(tmp_path / "gone")

    told = team.follow("Second engineer", second)
    run, again = (part for part in re.split(r"starting Prefect|scorecards", told) if "fetch: " in part)
    cached = [name for name, stage in STAGES.items() if stage.is_cached]
    assert "done" not in run and all(f" {stage}: restored" in run for stage in cached), run
    assert " evaluate: done" in again and " build: hit" in again
    assert "version 1 is the champion now" in told and "camera version 1 is now on" in told
    load = "import mlflow; print(mlflow.pyfunc.load_model('models:/cats.local-cpu.float32@champion').metadata.flavors)"
    loaded = team.run("Loading", f'python -c "{load}"', tmp_path / "anyone", ".")
    assert "python_function" in loaded

    worker = team.follow("Workers near devices", tmp_path / "worker")
    [clone] = (tmp_path / "worker" / "cache" / "workspaces").iterdir()
    assert (clone / "results" / "cats.yaml").is_file() and "Completed" in worker, worker
    assert "nothing to do" in team.follow("Re-tune after an upgrade", second, "phones")
    ci = tmp_path / "ci"
    subprocess.run(["git", "clone", "-q", str(tmp_path / "phones.git"), str(ci / "phones")], check=True)
    # The champion is the library of both measurements: nothing was measured since, so noise decides nothing.
    assert "not measured at both moments: 1, e.g. cats@local-cpu:float32" in team.follow("CI", ci, "phones")

"""Install the lowest and the newest versions of pyproject.toml on several Pythons, and bring a model to an app.

Resolves and downloads several hundred packages from the package index, by uv.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.conftest import NAMES_OF_SERVERS, REPOSITORY, shared_folder

EXTRAS = ("onnx", "ui", "dask", "text", "adb")
DASK = "flows: {runner: dask, workers: 2}\n"
USE = REPOSITORY / "tests" / "setup" / "exercise_extras.py"
QUICK = """
tune: {trials_per_workload: 2, total_trials: 6, measure_min_ms: 1.0, measure_repeats: 2, max_drift: 5.0}
evaluate: {turns: 6, turn_ms: 2.0, max_seconds: 2.0, cold_starts: 1, max_foreign_load: 1.0}
"""
MODEL = """
import numpy as np, onnx, sys
from onnx import helper, numpy_helper
draw = np.random.default_rng(int(sys.argv[2]))
weights = [numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32), name)
           for name, shape in (("w", (8, 3, 3, 3)), ("d", (8, 4)))]
nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4), helper.make_node("Relu", ["c"], ["r"]),
         helper.make_node("GlobalAveragePool", ["r"], ["p"]), helper.make_node("Flatten", ["p"], ["f"]),
         helper.make_node("MatMul", ["f", "d"], ["y"])]
values = [[helper.make_tensor_value_info(name, 1, shape)] for name, shape in (("x", [1, 3, 16, 16]), ("y", [1, 4]))]
graph = helper.make_graph(nodes, "g", *values, weights)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), sys.argv[1])
"""
# What no version but the newest has may be used by none of the commands.
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("add", "../model.onnx", "--name", "mine"),
    ("run", "mine"),
    ("status",),
    ("history", "mine"),
    ("report",),
    ("bundle", "mine", "--newest", "--unsigned", "-o", "../app.zip"),
    ("verify", "../app.zip", "--unsigned"),
    ("promote", "mine"),
    ("run", "mine"),
)


def _python(version: str) -> str | None:
    """Return a Python of a version, from PATH or pyenv; None without one."""
    found = [shutil.which(f"python{version}"), *map(str, _pyenv().glob(f"{version}*/bin/python{version}"))]
    for path in filter(None, found):
        asked = subprocess.run([path, "-c", "import venv"], capture_output=True, check=False)
        if asked.returncode == 0:
            return path
    return None


def _pyenv() -> Path:
    shim = shutil.which("pyenv")
    return (
        Path(os.environ.get("PYENV_ROOT") or (Path(shim).parents[1] if shim else Path.home() / ".pyenv")) / "versions"
    )


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = shared_folder(tmp_path_factory) / "uv"
    with FileLock(f"{folder}.lock"):
        if not (folder / "bin" / "uv").exists():
            command = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--target", str(folder), "uv"]
            if subprocess.run(command, check=False, timeout=300).returncode:
                pytest.skip("needs a package index with uv")
    return [str(folder / "bin" / "uv"), "--quiet", "--no-python-downloads", "--cache-dir", str(folder / "cache")]


def _installed(folder: Path, uv: list[str], python: str, resolution: str) -> Path:
    """Return the `bin` of an environment with tvmflow's wheel and these versions of all that it requires."""
    pip = [sys.executable, "-P", "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(REPOSITORY)], check=True, cwd=folder)
    [wheel] = folder.glob("tvmflow-*.whl")
    subprocess.run([*uv, "venv", "--python", python, str(folder / "env")], check=True)
    install = [*uv, "pip", "install", "--python", str(folder / "env" / "bin" / "python")]
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    asked = ["--resolution", resolution, "-r", str(REPOSITORY / "pyproject.toml")]
    subprocess.run([*install, *asked, *extras], check=True, timeout=1500)
    subprocess.run([*install, "--no-deps", str(wheel)], check=True)
    return folder / "env" / "bin"


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("version", "resolution"), [("3.11", "lowest-direct"), ("3.12", "highest"), ("3.13", "highest")]
)
def test_a_model_becomes_an_app_with_these_versions(
    version: str, resolution: str, uv: list[str], tmp_path: Path
) -> None:
    python = _python(version)
    if python is None:
        pytest.skip(f"needs Python {version}")
    programs = _installed(tmp_path, uv, python, resolution)
    left = {"PYTHONPATH", "VIRTUAL_ENV", *NAMES_OF_SERVERS}
    env = {name: value for name, value in os.environ.items() if name not in left}
    env |= {"PATH": f"{programs}:{env['PATH']}", "TVMFLOW_CACHE": str(tmp_path / "cache")}

    def called(*words: str, folder: Path) -> str:
        done = subprocess.run(
            [str(programs / words[0]), *words[1:]], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    called("python", "-c", MODEL, "model.onnx", "0", folder=tmp_path)
    called("tvmflow", "new", "ws", folder=tmp_path)
    workspace = tmp_path / "ws"
    with (workspace / "params.yaml").open("a") as params:
        params.write(QUICK)
    said = [called("tvmflow", *words, folder=workspace) for words in COMMANDS]
    assert "measurements of mine" in said[3] and "outputs equal bit for bit" in said[6] and "champion now" in said[7]
    assert "up to date" in called("dvc", "status", folder=workspace)
    with zipfile.ZipFile(tmp_path / "app.zip") as app:
        assert app.testzip() is None
    used = called("python", "-P", str(USE), folder=workspace)
    assert [line for line in ("text: tokens", "ui: page and models", "adb: no phones") if line not in used] == []
    with (workspace / "params.yaml").open("a") as params:
        params.write(DASK)
    for seed, name in enumerate(("second", "third"), 1):  # other weights: nothing of them is cached
        called("python", "-c", MODEL, f"{name}.onnx", str(seed), folder=tmp_path)
        called("tvmflow", "add", f"../{name}.onnx", "--name", name, folder=workspace)
    called("tvmflow", "sweep", folder=workspace)
    cells = json.loads(called("tvmflow", "status", "--json", folder=workspace))["cells"]
    assert {one["name"]: one["measured"] and not one["todo"] for one in cells} == {
        "mine": True,
        "second": True,
        "third": True,
    }
    assert "up to date" in called("dvc", "status", folder=workspace)


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return project


def test_only_what_says_why_is_pinned() -> None:
    """Each requirement of the package is a range, but for those with a reason beside them."""
    project = _project()
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    exact = {line for line in lines if "==" in line.split(";")[0]}
    text = (REPOSITORY / "pyproject.toml").read_text()
    assert exact == {"apache-tvm-ffi==0.1.14.post1"}
    assert [line for line in exact if f'"{line}",  # exact: ' not in text] == []


def test_the_lowest_versions_are_named() -> None:
    """Without a lower bound an installer may choose a version that nobody has tried."""
    project = _project()
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    assert [
        line
        for line in lines
        if not line.startswith("tvmflow[") and not {">=", "=="} & {line[at : at + 2] for at in range(len(line))}
    ] == []

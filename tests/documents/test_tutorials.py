"""Follow the tutorials: what they say is a command or a key today, and a small model goes the whole way."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
import yaml
from PIL import Image
from torch import nn
from typer.core import TyperGroup

from tests.conftest import REPOSITORY
from tests.documents.test_pages import own_variables
from tests.documents.walk import DOCS, WHOLE, Params, blocks_of, walking
from tests.flows.test_team_page import QUICK
from tvmflow.cli import app
from tvmflow.config.params import load_params
from tvmflow.support.errors import TvmflowError

TUTORIALS = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.glob("tutorials/*.md"))
PAGES = [*(path.name for path in sorted(DOCS.glob("*.md"))), *TUTORIALS, "../README.md"]
FOLLOWED = {f"tutorials/{name}.md" for name in ("first_model", "quantize", "tune", "app_c", "app_python", "app_apple")}
ELSEWHERE = {  # tutorial -> the test that does the same with a stand-in for the device or the servers
    "tutorials/app_android.md": "tests/shipping/test_aar.py",
    "tutorials/phone.md": "tests/documents/test_keras_mobilenet_android.py",
    "tutorials/raspberry_pi.md": "tests/devices/test_agent_runs.py",
    "tutorials/team.md": "tests/flows/test_team_page.py",
}


def _commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each command of tvmflow in a script."""
    for line in script.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), "&&"]:
            if word in ("&&", "||", "|", ";", "&"):
                if words[:1] == ["tvmflow"]:
                    yield list(itertools.takewhile(lambda one: ">" not in one, words[1:]))
                words = []
            else:
                words.append(word)


_root_command = functools.cache(lambda: typer.main.get_command(app))


def _parse(words: list[str]) -> None:
    """Parse a command without running it. Raises what typer raises for a command or an option that there is not."""
    command, context = _root_command(), None
    while True:
        context = command.make_context(words[0] if words else "tvmflow", list(words), parent=context)
        if not isinstance(command, TyperGroup):
            return
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None, name


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_one(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for script in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S):
        for words in _commands(script):
            try:
                _parse(words)
            except Exception as error:
                raise AssertionError(f"tvmflow {' '.join(words)}") from error


def test_a_command_that_is_none_is_noticed() -> None:
    found = list(_commands("tvmflow new a && cd a   # tvmflow no\ntvmflow run \\\n  b --nothing"))
    assert found == [["new", "a"], ["run", "b", "--nothing"]]
    _parse(found[0])
    for words, said in (
        (["run", "b", "--nothing"], "No such option"),
        (["nothing"], "No such command"),
        (["device", "nothing"], "No such command"),
        (["why"], "cell"),
    ):
        with pytest.raises(Exception, match=said):
            _parse(words)


@pytest.mark.parametrize("page", TUTORIALS)
def test_the_keys_of_a_tutorial_are_keys(page: str, tmp_path: Path) -> None:
    entry = {"framework": "onnx", "weights": {"file": "model.onnx"}, "input": {"shape": [1, 3, 16, 16]}}
    path = tmp_path / "params.yaml"
    cells = {"model": {"model": "model", "target": "local-cpu", "precision": "float32"}}
    local = {"kind": "llvm", "mcpu": "host", "threads": 2, "device": {"transport": "local", "key": "local-cpu"}}
    base: Params = {"models": {"model": entry}, "targets": {"local-cpu": local}, "cells": cells}
    for language, text in blocks_of(WHOLE, page):
        if language == "yaml":
            for name, part in yaml.safe_load(text).items():
                base[name] = {**base.get(name, {}), **part}
            path.write_text(yaml.safe_dump(base))
            assert load_params(path).models["model"].framework == "onnx"
    path.write_text(yaml.safe_dump({**base, "tune": {"no_such_key": 1}}))
    with pytest.raises(TvmflowError):
        load_params(path)


def test_every_tutorial_is_followed_or_is_elsewhere() -> None:
    assert FOLLOWED | ELSEWHERE.keys() == set(TUTORIALS) and not FOLLOWED & ELSEWHERE.keys()
    assert all((REPOSITORY / test).is_file() for test in ELSEWHERE.values())


def _image_model(path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 6))
    example = (torch.zeros(1, 3, 16, 16),)
    torch.onnx.export(network.eval(), example, path, input_names=["x"], output_names=["y"], dynamo=False)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a workspace after the first tutorial; the others begin with a copy."""
    place = tmp_path_factory.mktemp("first")
    _image_model(place / "model.onnx")
    quick = f"cat >> params.yaml <<'END'\n{yaml.safe_dump(QUICK)}END\n"
    here = {
        "pip install 'tvmflow[onnx]'": "true",
        "tvmflow run model": f"{quick}tvmflow run model",
        "../model.onnx": "../model.onnx --preprocess keras/none",
    }
    with walking(WHOLE, place, here, own=own_variables(place / "home"), page="tutorials/first_model.md") as steps:
        assert "model@local-cpu:float32" in steps.follow()
        steps.root = place / "my-models"
        pixels = np.random.default_rng(0).integers(0, 255, (40, 30, 3), np.uint8)
        Image.fromarray(pixels).save(steps.root / "photo.jpg")
        assert "class 0" in steps.follow()
    return place / "my-models"


@pytest.fixture
def root(first: Path, tmp_path: Path) -> Path:
    shutil.copyfile(first.parent / "model.onnx", tmp_path / "model.onnx")
    ignored = shutil.ignore_patterns(".prefect", "*.lock", "tmp")
    return Path(shutil.copytree(first, tmp_path / "my-models", symlinks=True, ignore=ignored))


@pytest.mark.slow
def test_a_model_is_quantized_with_a_goal(root: Path, tmp_path: Path) -> None:
    own = own_variables(tmp_path / "home")
    with walking(WHOLE, root, {"8ms": "800ms"}, own=own, page="tutorials/quantize.md") as steps:
        assert "model@local-cpu:int8" in steps.follow()
        assert "chosen" in steps.follow()


@pytest.mark.slow
def test_a_model_is_tuned(root: Path, tmp_path: Path) -> None:
    few = {"trials_per_workload: 64": "trials_per_workload: 2"}
    with walking(WHOLE, root, few, own=own_variables(tmp_path / "home"), page="tutorials/tune.md") as steps:
        assert "model@local-cpu:float32" in steps.follow()
        steps.follow()
        steps.follow()
    assert list(root.glob("*.trace.json"))


@pytest.mark.slow
def test_a_model_is_in_an_app(root: Path, tmp_path: Path) -> None:
    own = own_variables(tmp_path / "home")
    with walking(WHOLE, root, own=own, page="tutorials/app_c.md") as steps:
        assert "is the champion now" in steps.follow()
    _build_in_c(root / "model.zip", tmp_path / "c")
    wheel = {"pip install": f"pip install --no-deps --no-index --target '{tmp_path}/site'"}
    with walking(WHOLE, root, wheel, own=own, page="tutorials/app_python.md") as steps:
        steps.follow()
    _use_in_python(tmp_path / "site")


@pytest.mark.slow
def test_a_model_is_in_a_swift_package(root: Path, tmp_path: Path) -> None:
    own, here = own_variables(tmp_path / "home"), {"pip install 'tvmflow[arm64]'": "tvmflow keys new ~/.keys/release"}
    with walking(WHOLE, root, here, own=own, page="tutorials/app_apple.md") as steps:
        assert "built, not measured" in steps.follow()
        assert "signed by" in steps.follow()
    package = root.parent / "Camera"
    assert (package / "Package.swift").is_file() and len(list(package.glob("*.xcframework/*/"))) == 3
    [program] = re.findall(r"^```swift\n(import.*?)^```", (DOCS / "tutorials/app_apple.md").read_text(), re.M | re.S)
    sources = "\n".join(path.read_text() for path in package.glob("Sources/**/*.swift"))
    assert (
        program.startswith("import Camera\n") and '.library(name: "Camera"' in (package / "Package.swift").read_text()
    )
    for name in re.findall(r"\b(Networks\.camera|Network\b|classify|rgba)", program):
        assert re.search(rf"\b{name.split('.')[-1]}\b", sources), name


def _build_in_c(bundle: Path, folder: Path) -> None:
    """Build and run the shortest program of the page."""
    [program] = re.findall(r"^```c\n(.*?)^```", (DOCS / "tutorials/app_c.md").read_text(), re.M | re.S)
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(folder)
    (folder / "short.c").write_text(program)
    [library] = (folder / "lib").glob("*/*.so")
    command = ["cc", "-std=c11", "-Iinclude", "short.c", str(library), f"-Wl,-rpath,{library.parent}", "-o", "short"]
    subprocess.run(command, cwd=folder, check=True)
    subprocess.run(["./short"], cwd=folder, check=True)


def _use_in_python(site: Path) -> None:
    """Run the program of the page with an array and a frame."""
    [program] = re.findall(r"^```python\n(.*?)^```", (DOCS / "tutorials/app_python.md").read_text(), re.M | re.S)
    given = (
        "import numpy as np\nimage = np.zeros((1, 3, 16, 16), np.float32)\nframe = np.zeros((20, 30, 3), np.uint8)\n"
    )
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{given}{program}"]
    command[-1] += "\nassert scores.shape == (1, 6)\n"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and re.search(r"\d+\.\d%", done.stdout), done.stdout + done.stderr

"""Build each example app as its README says, with only a library and headers, and check its output."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import CELL, REPOSITORY, SLUG
from tvmflow.codegen.network.bucket_tables import BucketPlan, SizedOutputs
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.image_tables import ImageInput
from tvmflow.codegen.network.link import link
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.codegen.network.plan import Memory, Plan, Value
from tvmflow.config.buckets import Axis, Sizes
from tvmflow.config.model_params import Preprocess
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.sources.data.preprocessing import recipe_for, value_table
from tvmflow.toolchain.compilers import Command

APPS = REPOSITORY / "examples" / "apps"
RUNTIME = REPOSITORY / "runtime"
LABELS = ("a", "b", "c", "d", 'e "é"', "f\N{GRINNING FACE}")
NEEDS_JAVA = pytest.mark.skipif(
    shutil.which("javac") is None or shutil.which("java") is None,
    reason="needs a JDK: apt-get install openjdk-17-jdk-headless",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library whose scores are the pixels of a gray image, 3 x 2."""
    path = tmp_path_factory.mktemp("tiny") / "network.so"
    shape, how = (1, 1, 2, 3), Preprocess.model_validate({"fit": "stretch"})
    memories = (Memory("input", 24), Memory("output", 24))
    values = (Value(0, 0, shape, "float32"), Value(1, 0, (1, 6), "float32"))
    plan = Plan(memories, values, (), (0,), (1,), ((0, 1),), ())
    image = ImageInput(recipe_for([shape], how), value_table(1, how, "float32"))
    network = Network("tiny@host:float32", (TensorSpec("x", shape),), ("scores",), 2, LABELS, image)
    link(path, [], plan, network, Command(("g++",)))
    return path


def _run(command: list[str], folder: Path, code: int = 0) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def _copied(name: str, folder: Path, network: Path, *targets: str) -> Path:
    """Return a copy of an example, made with a library."""
    shutil.copytree(APPS / name, folder / name)
    _run(["make", *targets, f"RUNTIME={RUNTIME}", f"NETWORK={network}", f"PYTHON={sys.executable}"], folder / name)
    return folder / name


def _frame(folder: Path, pixels: np.ndarray) -> Path:
    """Write an image as PPM or PGM."""
    kind = "P6" if pixels.ndim == 3 else "P5"
    path = folder / f"frame.{kind}"
    path.write_bytes(f"{kind}\n{pixels.shape[1]} {pixels.shape[0]}\n255\n".encode() + pixels.tobytes())
    return path


def _expected(network: Path, pixels: np.ndarray) -> list[str]:
    found = OpenedNetwork(network, 2).network.classify(pixels)
    return [f"{100 * guess.probability:5.1f}%  {guess.number} {guess.label}" for guess in found]


def _shown(output: str) -> list[str]:
    return output.rstrip("\n").split("\n")


PIXELS = (np.arange(9 * 7 * 3).reshape(9, 7, 3) * 11 % 256 // 8).astype(np.uint8)


def test_the_app_in_c(tiny: Path, tmp_path: Path) -> None:
    app = _copied("c", tmp_path, tiny)
    np.array([3, 1, 9, 0, 7, 2], np.float32).tofile(app / "input.bin")
    assert _shown(_run(["./app", "input.bin"], app)) == [
        "tiny@host:float32",
        "    9.0000  2 c",
        '    7.0000  4 e "é"',
        "    3.0000  0 a",
        "    2.0000  5 f\N{GRINNING FACE}",
        "    1.0000  1 b",
    ]
    (app / "input.bin").write_bytes(b"short")
    assert "no file of the input's size" in _run(["./app", "input.bin"], app, 1)


def test_the_app_in_cpp(tiny: Path, tmp_path: Path) -> None:
    app = _copied("cpp", tmp_path, tiny)
    for pixels in (PIXELS, PIXELS[..., 0].copy()):
        frame = _frame(tmp_path, pixels)
        assert _shown(_run(["./app", str(frame)], app)) == _expected(tiny, pixels)
    PIXELS.tofile(app / "frame.rgb")
    assert _shown(_run(["./app", "frame.rgb", "7", "9"], app)) == _expected(tiny, PIXELS)
    assert "the frame is cut off" in _run(["./app", "frame.rgb", "8", "9"], app, 1)
    assert "no PPM or PGM file" in _run(["./app", "frame.rgb"], app, 1)


def test_the_app_in_python_knows_no_tvm(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(APPS / "python", tmp_path / "python")
    shutil.copy(RUNTIME / "python" / "tvmflow_network.py", tmp_path / "python")
    frame = _frame(tmp_path, PIXELS)
    check = (
        "import runpy, sys; sys.argv[1:] = {!r}; runpy.run_path('app.py', run_name='__main__'); assert 'tvm' "
        "not in sys.modules"
    )
    shown = _run([sys.executable, "-c", check.format([str(tiny), str(frame)])], tmp_path / "python")
    assert _shown(shown) == [line.lstrip().rjust(len(line)) for line in _expected(tiny, PIXELS)]


@NEEDS_JAVA
def test_the_app_in_java_and_what_the_class_refuses(tiny: Path, tmp_path: Path) -> None:
    app = _copied("java", tmp_path, tiny)
    frame = _frame(tmp_path, PIXELS)
    java = ["java", "-Xcheck:jni", "-XX:TieredStopAtLevel=1", "-Djava.library.path=.", "-cp", "classes"]
    assert _shown(_run([*java, "App", str(tiny), str(frame)], app)) == _expected(tiny, PIXELS)
    source = Path(__file__).parent / "java" / "Misuse.java"
    _run(["javac", "-encoding", "UTF-8", "-cp", "classes", "-d", "classes", str(source)], app)
    assert _run([*java, "Misuse", str(tiny)], app) == "all is well\n"


@NEEDS_JAVA
def test_the_class_in_java_runs_any_size(tiny: Path, tmp_path: Path) -> None:
    app = _copied("java", tmp_path, tiny)

    def rows(count: int) -> Plan:
        values = (Value(0, 0, (count, 2), "float32"), Value(1, 0, (count, 2), "float32"))
        return Plan((Memory("input", 8 * count), Memory("output", 8 * count)), values, (), (0,), (1,), ((0, 1),), ())

    sized = SizedOutputs(Sizes(("rows",), ((2, 4),), (Axis(0, 0, 0),), (0,)), (Axis(0, 0, 0),))
    network = Network("rows@host:float32", (TensorSpec("x", (4, 2)),), ("y",), 2, sized=sized)
    link(app / "rows.so", [], rows(4), network, Command(("g++",)), others=[BucketPlan((2,), rows(2))])
    source = Path(__file__).parent / "java" / "Sizes.java"
    _run(["javac", "-encoding", "UTF-8", "-cp", "classes", "-d", "classes", str(source)], app)
    assert (
        _run(["java", "-Xcheck:jni", "-Djava.library.path=.", "-cp", "classes", "Sizes", "./rows.so"], app)
        == "all is well\n"
    )


@pytest.mark.heavy
def test_apps_with_a_built_library_say_what_predict_says(finished: Path, tmp_path: Path) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    from tvmflow import api

    network = finished / "artifacts" / "build" / SLUG / "network.so"
    digits = load_digits()
    apps = {"cpp": [str(_copied("cpp", tmp_path, network) / "app")]}
    apps["python"] = [sys.executable, str(APPS / "python" / "app.py"), str(network)]
    if shutil.which("javac"):
        java = _copied("java", tmp_path, network)
        apps["java"] = ["java", f"-Djava.library.path={java}", "-cp", str(java / "classes"), "App", str(network)]
    for number in (3, 8):
        pixels = np.round(digits.images[number] * (255 / 16)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "digit.png")
        frame = _frame(tmp_path, pixels)
        (said,) = api.classify(CELL, [str(tmp_path / "digit.png")], 5, finished)
        expected = [f"{100 * guess.probability:.1f}%  {guess.number} {guess.name}" for guess in said.top]
        for name, command in apps.items():
            assert [line.strip() for line in _shown(_run([*command, str(frame)], tmp_path))] == expected, name

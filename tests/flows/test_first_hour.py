"""The first hour of a new user: seven models of one's own, each by commands to a latency and a ratio, and into apps.

Two processes keep the machine busy meanwhile, as browsers and editors do.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from bench.conformance.tflite_models import FileWriter
from tests.conftest import tvmflow
from tests.sized_models import write_encoder
from tests.sources.test_tokens import write_tokenizer
from tvmflow.api import predict

pytestmark = pytest.mark.heavy

QUICK = """
tune: {trials_per_workload: 2, total_trials: 6, measure_min_ms: 1.0, measure_repeats: 2, max_drift: 5.0}
evaluate: {turns: 6, turn_ms: 2.0, max_seconds: 2.0, cold_starts: 1, max_foreign_load: 1.0}
"""
PYTHON_APP = """
import sys, numpy as np
folder, wheel, inputs = sys.argv[1], sys.argv[2], sys.argv[3:]
sys.path.insert(0, wheel)
package = __import__(folder)
with package.load() as network:
    given = {one.name: np.load(file)[:1] for one, file in zip(network.inputs, inputs)}
    outputs = network(given)
print(repr((outputs if isinstance(outputs, tuple) else (outputs,))[0].ravel()[:3].tolist()))
"""


@pytest.fixture
def busy() -> Iterator[None]:
    """Keep two processors busy, with what other tests leave."""
    loops = [subprocess.Popen(["nice", "-n", "19", sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


def _onnx(module: nn.Module, shape: tuple[int, ...], path: Path, outputs: tuple[str, ...] = ("y",)) -> Path:
    torch.onnx.export(
        module.eval(), (torch.zeros(shape),), path, input_names=["x"], output_names=list(outputs), dynamo=False
    )
    return path


class _Block(nn.Module):
    """An inverted residual of MobileNetV3: expansion, depthwise convolution, squeeze and excitation, projection."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, inner, 1), nn.BatchNorm2d(inner), nn.Hardswish())
        self.depthwise = nn.Sequential(nn.Conv2d(inner, inner, 3, 1, 1, groups=inner), nn.Hardswish())
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(inner, inner, 1), nn.Hardsigmoid())
        self.project = nn.Conv2d(inner, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depthwise(self.body(x))
        projected: torch.Tensor = self.project(y * self.gate(y))
        return x + projected


class _Detector(nn.Module):
    """Boxes, scores and features of one backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
        self.boxes, self.scores = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 6, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.body(x)
        return self.boxes(y).flatten(2).transpose(1, 2), self.scores(y).flatten(2).softmax(1), y


def _tabular(folder: Path) -> list[str]:
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return [str(_onnx(module, (1, 6), folder / "model.onnx"))]


def _mobile(folder: Path) -> list[str]:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), _Block(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    return [str(_onnx(module, (1, 3, 32, 32), folder / "model.onnx")), "--preprocess", "torchvision"]


def _module(folder: Path) -> list[str]:
    (folder / "net.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), "
        "nn.Linear(8 * 6 * 6, 4))\n"
    )
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 4))
    save_file(module.state_dict(), folder / "model.safetensors")
    return [str(folder / "model.safetensors"), "--network", f"{folder}/net.py:make", "--shape", "1,3,8,8"]


def _keras(folder: Path) -> list[str]:
    script = (
        "import sys, keras\nkeras.utils.set_random_seed(0)\n"
        "x = keras.Input((8, 8, 3))\ny = keras.layers.Conv2D(8, 3, activation='relu')(x)\n"
        "y = keras.layers.Dense(4, activation='softmax')(keras.layers.GlobalAveragePooling2D()(y))\n"
        "keras.Model(x, y).save(sys.argv[1])\n"
    )
    command = ["env", "KERAS_BACKEND=torch", sys.executable, "-c", script, str(folder / "model.keras")]
    subprocess.run(command, check=True, capture_output=True)
    return [str(folder / "model.keras"), "--preprocess", "keras/tf"]


def _tflite(folder: Path) -> list[str]:
    draw, writer = np.random.default_rng(0), FileWriter()
    x, hidden, y = (
        writer.tensor(name, shape, "FLOAT32") for name, shape in (("x", (1, 6)), ("h", (1, 8)), ("y", (1, 3)))
    )
    for source, to, into, outof in ((x, hidden, 6, 8), (hidden, y, 8, 3)):
        weights = draw.standard_normal((outof, into)).astype(np.float32)
        constants = [writer.tensor("w", weights.shape, "FLOAT32", weights)]
        constants.append(writer.tensor("b", (outof,), "FLOAT32", np.zeros(outof, np.float32)))
        writer.operator("FULLY_CONNECTED", [source, *constants], [to], "FullyConnectedOptions")
    (folder / "model.tflite").write_bytes(writer.content([x], [y]))
    return [str(folder / "model.tflite")]


def _encoder(folder: Path) -> list[str]:
    words = ["--tokenizer", str(write_tokenizer(folder / "tokenizer.json"))]
    return [str(write_encoder(folder)), "--buckets", "8,16", "--high", "50", *words]


def _detector(folder: Path) -> list[str]:
    names = ("boxes", "scores", "features")
    return [str(_onnx(_Detector(), (1, 3, 32, 32), folder / "model.onnx", names)), "--preprocess", "torchvision"]


@pytest.mark.parametrize(
    "make",
    [
        _tabular,
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (_mobile, _module, _keras, _tflite, _encoder, _detector)
        ),
    ],
    ids=lambda make: make.__name__.strip("_"),
)
def test_a_model_of_ones_own_is_in_an_app_within_the_hour(
    make: Callable[[Path], list[str]], tmp_path: Path, busy: None, with_prefect_server: str
) -> None:
    torch.manual_seed(0)
    root, files = tmp_path / "ws", tmp_path / "files"
    files.mkdir()
    tvmflow(tmp_path, "new", str(root))
    with (root / "params.yaml").open("a") as params:
        params.write(QUICK)
    words = make(files)
    tvmflow(root, "add", *words, "--name", "mine")
    done = tvmflow(root, "run", "mine", "--json")
    [card] = json.loads(done.stdout)["scorecards"]
    assert card["latency"]["compute"]["median_ms"] > 0, done.stdout
    ratios = [one["times_faster"] for one in card["advantages"].values()]
    assert ratios and all(ratio is None or ratio > 0 for ratio in ratios) and any(ratios), card["advantages"]
    shown = tvmflow(root, "run", "mine").stdout
    assert re.search(r"[0-9.]+ ms", shown) and re.search(r"[0-9.]+x", shown), "also where nothing is left to do"

    _use_in_c(root, tmp_path)
    _use_in_python(root, tmp_path)
    if "--tokenizer" in words:
        _predict_texts(root, tmp_path)
    tvmflow(root, "add", *words, "--name", "board", "--target", "linux-arm64")
    done = tvmflow(root, "run", "board@linux-arm64:float32", "--without-device")
    assert "built, not measured" in done.stderr
    tvmflow(root, "bundle", "board@linux-arm64:float32", "--unmeasured", "--unsigned", "-o", str(tmp_path / "arm.zip"))
    with zipfile.ZipFile(tmp_path / "arm.zip") as archive:
        [library] = json.loads(archive.read("manifest.json"))["libraries"]
    assert library["measured"] is False and library["abi"] == "aarch64-linux-gnu"


def _predict_texts(root: Path, folder: Path) -> None:
    """The words of a text have the outputs of their ids, in the order of the texts; a long one is cut."""
    (folder / "long.txt").write_text("cat " * 40)
    done = tvmflow(root, "predict", "mine", "a cat", "cat", str(folder / "long.txt"), "--json")
    pair, one, long = json.loads(done.stdout)
    assert (pair["text"], one["text"], long["text"]) == ("a cat", "cat", str(folder / "long.txt"))
    assert [(text["tokens"], text["used"]) for text in (pair, one, long)] == [(4, 4), (3, 3), (42, 16)]
    assert "42 tokens" in done.stderr and "was cut" in done.stderr
    ids = np.array([[2, 4, 5, 3]])  # of [CLS] a cat [SEP]
    given = {"ids": ids, "mask": np.ones_like(ids)}
    expected = predict("mine", given, root)
    assert len(pair["outputs"]) == 2
    for name, wanted in zip(("states", "first"), expected, strict=True):
        np.testing.assert_allclose(pair["outputs"][name], wanted, atol=1e-5)


def _golden(app: Path) -> tuple[list[Path], np.ndarray]:
    """Return the golden inputs of a bundle, and the beginning of the first output."""
    [library] = json.loads((app / "manifest.json").read_text())["libraries"]
    expected = np.load(app / library["golden"]["outputs"][0]["file"])[0].ravel()[:3]
    return [app / one["file"] for one in library["golden"]["inputs"]], expected


def _use_in_c(root: Path, folder: Path) -> None:
    tvmflow(root, "bundle", "mine", "--newest", "--unsigned", "-o", str(folder / "app.zip"))
    app = folder / "app"
    with zipfile.ZipFile(folder / "app.zip") as archive:
        archive.extractall(app)
    [library] = (app / "lib").glob("*/*.so")
    command = ["cc", "-std=c11", "-Iinclude", "examples/app.c", str(library), "-o", "app"]
    subprocess.run(command, cwd=app, check=True)
    inputs, expected = _golden(app)
    done = subprocess.run(
        ["env", f"LD_LIBRARY_PATH={library.parent}", "./app", *map(str, inputs)],
        cwd=app,
        capture_output=True,
        text=True,
        check=True,
    )
    numbers = [float(text) for text in re.findall(r"-?\d+\.?\d*(?:e[-+]?\d+)?", done.stdout.split(":", 1)[-1])]
    assert any(np.allclose(numbers[at : at + 3], expected, atol=1e-4) for at in range(len(numbers))), done.stdout


def _use_in_python(root: Path, folder: Path) -> None:
    tvmflow(root, "bundle", "mine", "--newest", "--unsigned", "--format", "wheel", "-o", str(folder))
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    inputs, expected = _golden(folder / "app")
    done = subprocess.run(
        [sys.executable, "-P", "-c", PYTHON_APP, "mine", str(folder / "site"), *map(str, inputs)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert np.allclose(json.loads(done.stdout), expected, atol=1e-4)

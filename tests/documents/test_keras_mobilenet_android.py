"""Follow "MobileNetV2 of Keras on an Android phone": three processors of one phone, by the page's commands."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.conftest import free_port, small_params
from tests.documents.keras2_weights import write_keras2_weights
from tests.documents.phone_stand_in import StandIn, phone_stand_in
from tests.documents.walk import Params, Walk, walking
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.sources.data.labels import BUILT_IN
from tvmflow.sources.networks.keras_zoo import build, keras_on_torch
from tvmflow.support.errors import DeviceError, ToolchainError

SECTION = "MobileNetV2 of Keras on an Android phone"
ADDRESS = "https://github.com/JonathanCMitchell/mobilenet_v2_keras/releases/download/v1.1"
FILE = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_0.5_224.h5"
SMALL, WHOLE = ("keras/mobilenet_v2_035_96", 96), ("keras/mobilenet_v2_050", 224)
MEAN, STD = np.array([123.0, 117.0, 104.0]), np.array([58.395, 57.12, 57.375])
STEPS = ("mean", "median", "max", "min", "std")
EMULATOR_S = 2400.0  # a GPU in software that is emulated, on a machine that other tests use


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def stand_in(emulated: EmulatedSystem, adb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setattr("tests.documents.walk.LONGEST_S", EMULATOR_S)
    try:
        with phone_stand_in(emulated, adb, tmp_path) as made:
            yield made
    except (DeviceError, ToolchainError) as error:
        pytest.skip(str(error))


def _settings(network: str, size: int) -> Any:
    """Return what differs from the page in params.yaml: less tuning and fewer runs; time for a GPU in software."""

    def change(params: Params) -> None:
        params["tune"]["trials_per_workload"] = 0
        params["fetch"] |= {"calibration_samples": 2, "evaluation_samples": 2, "golden_samples": 2, "random_samples": 4}
        params["evaluate"] |= {"turns": 6, "turn_ms": 1.0, "warmup_runs": 1, "cold_starts": 1}
        params["deploy"]["session_timeout_s"] = EMULATOR_S
        for api in ("opencl", "vulkan"):
            params["targets"][f"my-phone-{api}"][api]["timeout_s"] = EMULATOR_S
        for model in params["models"].values():
            model |= {"network": network, "input": {"shape": [1, 3, size, size]}}

    return change


def _image(path: Path) -> Path:
    """Write a picture with structure at several sizes."""
    generator = np.random.default_rng(5)
    coarse = Image.fromarray(generator.integers(0, 256, (9, 11, 3), dtype=np.uint8)).resize((330, 270), Image.BICUBIC)
    fine = generator.integers(-20, 21, (270, 330, 3))
    Image.fromarray(np.clip(np.asarray(coarse) + fine, 0, 255).astype(np.uint8)).save(path)
    return path


def _by_keras(model: Any, image: Path, size: int) -> tuple[int, float]:
    """Return the class that Keras itself names, as the document does it, and its probability."""
    x = (np.asarray(Image.open(image).resize((size, size), Image.BICUBIC)) - MEAN) / STD
    scores = np.asarray(keras_on_torch().ops.convert_to_numpy(model(x.transpose(2, 0, 1)[None].astype(np.float32))))[0]
    best = int(scores.argmax())
    assert scores[best] > 1.2 * np.sort(scores)[-2], "a picture whose class is beyond doubt"
    return best, float(scores[best])


class _Journey:
    """The walk, and what it is compared with."""

    def __init__(self, walk: Walk, best: tuple[int, float]) -> None:
        self.walk, self.best = walk, best

    def cell(self, name: str) -> dict[str, Any]:
        """Run a cell; return its scorecard."""
        said = self.walk.follow()
        number, probability = self.best
        lines = [line.replace("\u2502", " ").strip() for line in said.splitlines()]
        [line] = [line for line in lines if line.endswith(f" {number}") and "%" in line]
        assert BUILT_IN["imagenet"]()[number] in line, line
        assert float(line.split("%")[0]) == pytest.approx(100 * probability, rel=0.01, abs=0.06), line
        cell = yaml.safe_load((self.walk.root / "params.yaml").read_text())["cells"][name]
        slug = f"{cell['model']}.{cell['target']}.{cell['precision']}"
        card: dict[str, Any] = json.loads((self.walk.root / "artifacts/evaluate" / slug / "scorecard.json").read_text())
        assert card["agreement"]["top1_agreement"] == 1.0 and card["agreement"]["max_relative_error"] < 1e-2
        return card

    def gpu_cell(self, name: str, api: str, driver: str) -> dict[str, Any]:
        card = self.cell(name)
        assert card["device"]["gpu"]["api"] == api and driver in str(card["device"]["gpu"])
        assert card["kernel_agreement"]["first"] is None and card["kernel_agreement"]["kernels"] > 30
        return card


@contextmanager
def _journey(stand_in: StandIn, folder: Path, network: str, size: int) -> Iterator[_Journey]:
    """Go from the tracker to the model's entry in params.yaml."""
    served, root = folder / "served", folder / "phones"
    served.mkdir()
    root.mkdir()
    model = build(network, 2)
    weights = write_keras2_weights(model, served / FILE).read_bytes()
    digest, port, serial = hashlib.sha256(weights).hexdigest(), str(free_port()), stand_in.phone.serial
    params = small_params() | {"models": {}, "targets": {}, "cells": {}}
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    best = _by_keras(model, _image(root / "cat.png"), size)
    with _served(served) as address:
        changes = {
            "--port-end 9191": f"--port-end {int(port) + 1}",
            "9190": port,
            "8A1X0TEST": serial,
            "max_celsius: 45.0": "max_celsius: 120.0",
            ADDRESS: address,
            "0" * 64: digest,
        }
        own = {"ANDROID_NDK_HOME": str(stand_in.ndk)}
        with walking(SECTION, root, changes, _settings(network, size), own) as walk:
            assert "server:android" in walk.follow()
            said = walk.follow()
            assert "SM8150" in said and "2 cortex-a76" in said and "authorized" in said
            _check_processors(said, stand_in, serial)
            assert walk.follow().split()[0] == digest
            yield _Journey(walk, best)


def _check_processors(said: str, stand_in: StandIn, serial: str) -> None:
    assert f"device: {serial}, fake/fake/7:15/1" in said, said
    assert "mcpu: generic" in said, said  # the emulator has no names of cores
    checks = said[said.index("processors of my-phone") :]
    rows = {words[0]: words for line in checks.splitlines() if (words := line.replace("\u2502", " ").split())}
    assert "yes" in rows["cpu"] and "yes" in rows["vulkan"] and "llvmpipe" in rows["vulkan"]
    assert ("no" if stand_in.gpus.without_opencl else "yes") in rows["opencl"]


def _check_times(walk: Walk, cards: dict[str, dict[str, Any]]) -> None:
    """Check that the five numbers of each cell stand in one table, and in the report."""
    said = walk.follow()
    table = said[said.index("execution time") :].splitlines()
    assert all(f"{step} (ms)" in table[1] or f"{step} (ms)" in table[2] for step in STEPS), table[:4]
    page = (walk.root / "report.html").read_text()
    for card in cards.values():
        numbers = [f"{card['latency']['compute'][f'{step}_ms']:.4g}" for step in STEPS]
        [line] = [line for line in table if card["cell"] in line and "runs" not in line]
        assert line.replace("\u2502", " ").split()[1:6] == numbers, line
        assert json.dumps(card["cell"]) in page
        assert (card["gpu"] is None) == (not any(card["cell"] in line and "runs" in line for line in table))


@pytest.mark.heavy
@pytest.mark.timeout(3000)
def test_a_small_mobilenet_on_the_cpu_and_by_vulkan(stand_in: StandIn, tmp_path: Path) -> None:
    with _journey(stand_in, tmp_path, *SMALL) as journey:
        cards = {"cpu": journey.cell("phone-cpu")}
        cards["vulkan"] = journey.gpu_cell("phone-vulkan", "vulkan", "llvmpipe")
        journey.walk.left.pop(0)  # OpenCL, which the walk of the document's size takes
        _check_times(journey.walk, cards)


@pytest.mark.slow
@pytest.mark.timeout(6000)
def test_the_documents_mobilenet_on_all_three(stand_in: StandIn, tmp_path: Path) -> None:
    with _journey(stand_in, tmp_path, *WHOLE) as journey:
        cards = {"cpu": journey.cell("phone-cpu")}
        cards["vulkan"] = journey.gpu_cell("phone-vulkan", "vulkan", "llvmpipe")
        if stand_in.gpus.without_opencl:
            journey.walk.left.pop(0)
        else:
            cards["opencl"] = journey.gpu_cell("phone-opencl", "opencl", "Portable Computing Language")
        _check_times(journey.walk, cards)
    if stand_in.gpus.without_opencl:
        pytest.skip(f"without OpenCL: {stand_in.gpus.without_opencl}")

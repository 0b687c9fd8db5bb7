"""Follow "ResNet-18 of PyTorch on Adreno" on a stand-in: a phone of x86-64 whose OpenCL has a stand-in for CLML.

Half arithmetic needs Intel's OpenCL runtime (pip install intel-opencl-rt into an environment named by INTEL_OPENCL),
whose licence keeps it out of what is installed on demand. PoCL, which lacks it, takes the walk in float32.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from tests.conftest import REPOSITORY, free_port, small_params
from tests.devices.fake_phone import FakePhone
from tests.documents.phone_stand_in import write_ndk
from tests.documents.walk import Params, Walk, walking
from tvmflow.sources.data.labels import BUILT_IN
from tvmflow.sources.networks.torch_zoo import build_seeded
from tvmflow.support.errors import DeviceError, ToolchainError
from tvmflow.toolchain.software_gpus import software_drivers

SECTION = "ResNet-18 of PyTorch on Adreno"
STAND_INS = REPOSITORY / "tests" / "gpu_codegen"
LONGEST_S = 1800.0  # two cores that other tests use
SIDE = 64
_TRIALS = 3
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


@dataclass(frozen=True)
class _Driver:
    """name: as it calls itself; environment: of the phone's programs; has_half: whether it computes in float16."""

    name: str
    environment: dict[str, str]
    has_half: bool


def _drivers() -> _Driver:
    if root := os.environ.get("INTEL_OPENCL"):
        library = Path(root) / "lib"
        icd = {"OCL_ICD_FILENAMES": str(library / "libintelocl.so"), "LD_LIBRARY_PATH": str(library)}
        return _Driver("Intel", icd, has_half=True)
    return _Driver("Portable Computing Language", dict(software_drivers().pocl.environment), has_half=False)


def _with_clml(driver: _Driver, folder: Path) -> dict[str, str]:
    """Return the environment in which libOpenCL.so is a stand-in for Qualcomm's, in front of the driver."""
    folder.mkdir()
    source, include = STAND_INS / "clml_driver.c", STAND_INS / "clml_sdk" / "include"
    command = ["gcc", "-shared", "-fPIC", "-O2", f"-I{include}", "-o", str(folder / "libOpenCL.so"), str(source)]
    subprocess.run([*command, "-lm", "-ldl"], check=True)
    return {
        **driver.environment,
        "LD_LIBRARY_PATH": f"{folder}:{driver.environment['LD_LIBRARY_PATH']}",
        "CLML_LOG": str(folder / "calls"),
    }


def _settings(driver: _Driver) -> Any:
    """Return what differs from the page: a small image, few trials and runs, a phone of x86-64."""

    def change(params: Params) -> None:
        tune = params["tune"]
        if tune["trials_per_workload"] != _TRIALS:  # before the first change: as the page has it
            assert (tune["tuner"], tune["loss"], tune["trials_per_workload"]) == ("xgb", "reg", 1024)
            assert (tune["build_timeout_s"], tune["kernel_timeout_s"]) == (15.0, 600.0)
        tune |= {"trials_per_workload": _TRIALS, "max_workloads": 2, "measure_min_ms": 1.0, "build_timeout_s": 300.0}
        tune |= {"canary_every": 100, "cool_s": 0.0}
        params["fetch"] |= {"calibration_samples": 2, "evaluation_samples": 2, "golden_samples": 2, "random_samples": 4}
        params["evaluate"] |= {"turns": 6, "turn_ms": 1.0, "warmup_runs": 1, "cold_starts": 1}
        params["deploy"]["session_timeout_s"] = LONGEST_S
        for target in params["targets"].values():
            target |= {"mcpu": "x86-64-v3", "mtriple": "x86_64-linux-android", "threads": 1}
            target["opencl"]["timeout_s"] = LONGEST_S
        for model in params["models"].values():
            model |= {"weights": {"seeded": 18}, "input": {"shape": [1, 3, SIDE, SIDE]}}
            model["preprocess"] |= {"resize": SIDE + 8}
        for cell in params["cells"].values():
            cell["precision"] = cell["precision"] if driver.has_half else "float32"

    return change


def _image(path: Path) -> Path:
    generator = np.random.default_rng(7)
    coarse = Image.fromarray(generator.integers(0, 256, (5, 5, 3), dtype=np.uint8))
    coarse.resize((SIDE + 8, SIDE + 8), Image.BICUBIC).save(path)
    return path


def _by_pytorch(image: Path) -> list[int]:
    """Return the five most likely classes by PyTorch itself, prepared as the document does it."""
    model, x = build_seeded("torchvision/resnet18", 18), np.asarray(Image.open(image), np.float32) / 255
    x = ((x[4:-4, 4:-4] - MEAN) / STD).transpose(2, 0, 1)[None].astype(np.float32)
    with torch.no_grad():
        scores = model(torch.from_numpy(x))[0].numpy()
    return [int(at) for at in np.argsort(-scores)[:5]]


@contextmanager
def _journey(adb: str, folder: Path, driver: _Driver) -> Iterator[tuple[Walk, Path]]:
    root, port = folder / "adreno", str(free_port())
    root.mkdir()
    (root / "params.yaml").write_text(
        yaml.safe_dump(small_params() | {"models": {}, "targets": {}, "cells": {}}, sort_keys=False)
    )
    shutil.copytree(STAND_INS / "clml_sdk", root / "clml-sdk")
    environment = _with_clml(driver, folder / "driver")
    emulator = ["env", *(f"{name}={value}" for name, value in environment.items())]
    with FakePhone(folder / "phone", {"ro.soc.model": "SM8150"}, emulator=emulator) as phone:
        changes = {
            "--port-end 9191": f"--port-end {int(port) + 1}",
            "9190": port,
            "8A1X0TEST": phone.serial,
            "max_celsius: 45.0": "max_celsius: 120.0",
        }
        own = {"ANDROID_NDK_HOME": str(write_ndk(folder / "ndk", "x86_64"))}
        with walking(SECTION, root, changes, _settings(driver), own) as walk:
            yield walk, folder / "driver" / "calls"
        subprocess.run([adb, "disconnect", phone.serial], capture_output=True, check=False)


def _check_top5(said: str, classes: list[int]) -> None:
    names = BUILT_IN["imagenet"]()
    lines = [line for line in said.splitlines() if "%" in line and any(names[at] in line for at in classes)]
    assert len(lines) >= 5 and names[classes[0]] in lines[0], said
    assert all(any(names[at] in line for line in lines) for at in classes), said


def _card(root: Path, target: str, precision: str) -> dict[str, Any]:
    path = root / "artifacts" / "evaluate" / f"resnet18.{target}.{precision}" / "scorecard.json"
    card: dict[str, Any] = json.loads(path.read_text())
    assert card["agreement"]["top1_agreement"] == 1.0 and card["kernel_agreement"]["first"] is None
    return card


@pytest.mark.slow
@pytest.mark.timeout(6000)
def test_the_document_on_a_stand_in_for_adreno(adb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.documents.walk.LONGEST_S", LONGEST_S)
    try:
        driver = _drivers()
    except (DeviceError, ToolchainError) as error:
        pytest.skip(str(error))
    with _journey(adb, tmp_path, driver) as (walk, calls):
        classes = _by_pytorch(_image(walk.root / "cat.png"))
        precisions = ("float16_acc32", "float16") if driver.has_half else ("float32", "float32")
        said = walk.follow()
        assert "SM8150" in said or "yes" in said
        assert "clMLOp" not in calls.read_text(), "kernels of our own"
        said = walk.follow()
        _check_top5(said, classes)
        card = _card(walk.root, "adreno", precisions[0])
        assert driver.name in str(card["device"]["gpu"])
        best = json.loads((walk.root / "artifacts/tune" / f"resnet18.adreno.{precisions[0]}" / "best.json").read_text())
        assert [one["status"] for one in best["records"]].count("ok") >= 2 and "status ok" in said
        _check_top5(walk.follow(), classes)
        assert "clEnqueueMLOpQCOM" not in calls.read_text().split()
        _check_top5(walk.follow(), classes)
        _card(walk.root, "adreno-clml", precisions[0])
        assert calls.read_text().split().count("clEnqueueMLOpQCOM") > 100, "layers by CLML"
    if not driver.has_half:
        pytest.skip("float32 passed; float16 needs Intel's OpenCL runtime, its environment in INTEL_OPENCL")

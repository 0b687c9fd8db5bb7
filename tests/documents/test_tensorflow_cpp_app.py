"""Follow "A TensorFlow model in a C++ app": a SavedModel on the CPU and by OpenCL, by the commands of the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from bench.tensorflow_models import run_in_environment
from tests.conftest import REPOSITORY, small_params
from tests.documents.walk import Params, walking
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, one_input

SECTION = "A TensorFlow model in a C++ app"
LABELS = [f"flower {at}" for at in range(10)]


def _settings(params: Params) -> None:
    params["tune"]["trials_per_workload"] = 0
    params["evaluate"] |= {"turns": 6, "turn_ms": 1.0, "warmup_runs": 1, "cold_starts": 1, "peers": []}


def _by_tensorflow(root: Path) -> tuple[int, float]:
    """Return the class that TensorFlow itself names, and its probability."""
    (root / "fetched").mkdir()
    (root / "fetched" / "model.pb").write_bytes((root / "flowers" / "saved_model.pb").read_bytes())
    (root / "fetched" / "saved_model").symlink_to(root / "flowers")
    description = SourceDescription("tensorflow", None, "model.pb", one_input("input", (1, 3, 32, 32)))
    picture = Image.open(root / "cat.png").resize((32, 32), Image.BILINEAR)
    x = ((np.asarray(picture, np.float32) - 127.5) / 127.5).transpose(2, 0, 1)[None]
    scores = load_source(root / "fetched", description).run(x)[0][0]
    return int(scores.argmax()), float(scores.max())


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_saved_model_in_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.documents.walk.LONGEST_S", 1500.0)
    root = tmp_path / "app"
    root.mkdir()
    (root / "params.yaml").write_text(yaml.safe_dump(small_params() | {"models": {}, "targets": {}, "cells": {}}))
    (root / "flowers.txt").write_text("\n".join(LABELS))
    run_in_environment("make", "3", str(root / "flowers"))
    pixels = np.random.default_rng(2).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((60, 48), Image.BICUBIC).save(root / "cat.png")
    number, probability = _by_tensorflow(root)
    own = {"EXAMPLES": str(REPOSITORY / "examples"), "RUNTIME": str(REPOSITORY / "runtime")}
    with walking(SECTION, root, change=_settings, own=own) as walk:
        said = walk.follow()
        assert "usable" in said and all(api in said for api in ("opencl", "vulkan")), said
        said = walk.follow()
        [line] = [line for line in said.splitlines() if f"flower {number}" in line and "%" in line]
        assert f"{100 * probability:.1f}%" in line, line
        said = walk.follow()
        first = [
            line for line in said.splitlines() if line.endswith(f"% {number} flower {number}".replace("% ", "%  "))
        ]
        assert len(first) == 2 and first[0] == first[1], said  # the CPU and the GPU
        _check_who_computed(said)
        _check_waits(root, walk.follow())


def _check_who_computed(said: str) -> None:
    [line] = [line for line in said.splitlines() if line.startswith("computed by")]
    assert "no library of OpenCL" in line or "Portable Computing Language" in line, line


def _check_waits(root: Path, said: str) -> None:
    card: dict[str, Any] = json.loads(
        (root / "artifacts" / "evaluate" / "flowers.app-gpu.float32" / "scorecard.json").read_text()
    )
    first = sorted(card["first_run_ms"])[len(card["first_run_ms"]) // 2]
    table = said[said.index("start and outputs of GPUs") :]
    for opened in ("compile_ms", "open_ms"):
        assert f"{card['gpu'][opened] + first:.4g} ms = " in table
    assert f"{card['gpu']['copy_out_ms']:.4g}" in table and card["gpu"]["compile_ms"] > card["gpu"]["open_ms"]
    assert '"empty_ms"' in (root / "report.html").read_text()

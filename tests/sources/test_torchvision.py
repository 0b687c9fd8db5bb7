"""Test importing torchvision: the real package where its operators load, a stand-in only after it failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

LOADS = """
import torch
library = torch.library.Library("torchvision", "DEF")  # as its C++ library does: a second definition is fatal there
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
DOES_NOT = """
import torch
@torch.library.register_fake("torchvision::nms")
def meta_nms(dets, scores, iou_threshold):
    return dets
"""


@pytest.mark.parametrize(
    ("package", "declared"), [(LOADS, 0), (DOES_NOT, 1)], ids=["operators load", "operators do not"]
)
def test_torchvision_defines_its_operators_itself_where_it_can(tmp_path: Path, package: str, declared: int) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(package)
    (tmp_path / "torchvision" / "models.py").write_text("answer = 42")
    code = (
        "from tvmflow.sources.networks import torch_zoo as t; assert t.torchvision_models().answer == 42; "
        f"assert t.torchvision_models().answer == 42; assert len(t._declared) == {declared}"
    )
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]

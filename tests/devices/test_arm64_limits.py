"""Limits of floats on arm64: one instruction each, the same numbers and the same answer to what is no number."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.devices.arm64 import linked, ran, target
from tests.differential.kernels import HOST, of_one_operator, run
from tvmflow.backends.table import backend_of
from tvmflow.building.library import build_scheduled
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.ir.emit import constant

HIGH = np.linspace(-1, 1, 24, dtype=np.float32)[None, :, None]
OPERATORS: list[Callable[[Any], Any]] = [
    relax.op.nn.relu,
    lambda x: relax.op.clip(x, 0, 6),
    lambda x: relax.op.maximum(relax.op.minimum(x, constant(HIGH, "float32")), constant(np.float32(-0.5), "float32")),
]


@pytest.mark.parametrize("operator", OPERATORS, ids=["relu", "clip", "limits"])
def test_a_limit_is_one_instruction_and_gives_the_same(
    operator: Callable[[Any], Any], emulated: EmulatedSystem, runner: Path, tmp_path: Path
) -> None:
    module, backend = of_one_operator(operator, (1, 24, 20)), backend_of(target("cortex-a53"))
    scheduled = build_scheduled(module, backend, {})
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    assert re.search(r"fm(ax|in)nm\tv", code) and not re.search(r"\t(bif|bsl|bit|fcmg.|fcsel)\t", code)
    x = (10 * np.random.default_rng(0).standard_normal((1, 24, 20))).astype(np.float32)
    x[0, 0, :6] = np.nan, np.inf, -np.inf, -0.0, 0.0, 6.0
    found = np.frombuffer(ran(linked(tmp_path, scheduled, 1, backend), runner, emulated, "cortex-a53", [x]), np.float32)
    here = run(build_scheduled(module, HOST, {}).executable, x)
    assert np.array_equal(found.reshape(here.shape), here, equal_nan=True)

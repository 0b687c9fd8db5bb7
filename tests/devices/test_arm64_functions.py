"""Test the functions of arm64's vectors under qemu against float64, at their ends, too."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from tests.devices.arm64 import linked, ran, target
from tvmflow.backends.registry import backend_of
from tvmflow.codegen.compile import build_scheduled
from tvmflow.devices.emulation.system import EmulatedSystem

ENDS = (math.nan, math.inf, -math.inf, 6e4, -6e4, 104.0, -104.0, 88.0, -88.0, 16.5, -16.5, 11.05, -11.05, -11.2, 0.0)
# Largest errors of sigmoid, and of GELU and SiLU between -8 and 8.
BOUNDS = {"float32": (2e-7, 1.5e-6), "float16": (1e-3, 6e-3)}


@pytest.mark.parametrize(("processor", "dtype"), [("cortex-a53", "float32"), ("cortex-a76", "float16")])
def test_functions_equal_float64(
    processor: str, dtype: str, runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    x = np.linspace(-8, 8, 2048).astype(dtype).reshape(2, 1024)
    x[0, : len(ENDS)] = ENDS
    variable, builder = relax.Var("x", relax.TensorType(x.shape, dtype)), relax.BlockBuilder()
    with builder.function("main", [variable]):
        with builder.dataflow():
            made = [builder.emit(one(variable)) for one in (relax.op.sigmoid, relax.op.nn.gelu, relax.op.nn.silu)]
            found = builder.emit_output(relax.Tuple(made))
        builder.emit_func_output(found)
    backend = backend_of(target(processor))
    scheduled = build_scheduled(builder.get(), backend, {})
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    lanes = {"float32": "4s", "float16": "8h"}[dtype]
    assert not re.search(r"\bbl\texpf?\b|\bbl\terff?\b", code)
    assert re.search(rf"fmla\tv\d+\.{lanes}, v\d+\.{lanes}, v\d+\.[sh]\[\d\]", code)
    path = linked(tmp_path, scheduled, 3, backend)
    got = np.frombuffer(ran(path, runner, emulated, processor, [x]), dtype).reshape(3, -1).astype(np.float64)
    wide = x.reshape(-1).astype(np.float64)
    of_sigmoid, of_others = BOUNDS[dtype]
    wide[0] = 0  # NaN
    sigmoid = 1 / (1 + np.exp(-np.clip(wide, -700, 700)))
    gelu = np.array([0.5 * value * math.erfc(-value / math.sqrt(2)) for value in wide])
    between = slice(len(ENDS), None)
    assert np.isnan(got[:, 0]).all()
    assert np.abs(got[0, 1:] - sigmoid[1:]).max() <= of_sigmoid
    assert np.abs(got[1, between] - gelu[between]).max() <= of_others
    assert np.abs(got[2, between] - (wide * sigmoid)[between]).max() <= of_others
    at = dict(zip(ENDS, range(len(ENDS)), strict=True))
    assert got[0, at[math.inf]] == 1 and got[0, at[-math.inf]] == 0
    for of in got[1:]:  # what is multiplied with a large number is 0 or 1 exactly
        assert of[at[-6e4]] == 0 and of[at[6e4]] == wide[at[6e4]] and of[at[0.0]] == 0

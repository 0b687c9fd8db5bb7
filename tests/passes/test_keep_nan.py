"""Test float minimum and maximum on x86: NaN for NaN; one instruction where the constant is not zero."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.differential.kernels import HOST, of_one_operator, run
from tvmflow.codegen.compile import build_scheduled
from tvmflow.ir.relax.emit import constant

OPERATORS: dict[str, Callable[[Any], Any]] = {
    "relu": relax.op.nn.relu,
    "clip": lambda x: relax.op.clip(x, -1, 6),
    "minimum": lambda x: relax.op.minimum(x, constant(np.float32(6), "float32")),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_no_number_stays_so(name: str) -> None:
    scheduled = build_scheduled(of_one_operator(OPERATORS[name], (1, 24, 20)), HOST, {})
    x = (10 * np.random.default_rng(0).standard_normal((1, 24, 20))).astype(np.float32)
    x[0, 0, :3] = np.nan, np.inf, -np.inf
    low, high = {"relu": (0, np.inf), "clip": (-1, 6), "minimum": (-np.inf, 6)}[name]
    assert np.array_equal(run(scheduled.executable, x), np.clip(x, low, high), equal_nan=True)
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    if ("ymm" in code or "zmm" in code) and name != "relu":  # LLVM masks with the comparison to zero
        assert re.search(r"v(max|min)ps", code) and not re.search(r"v(cmp\w*|blendv?|and)ps", code)

"""Test parsing functions from text: TVM's own parser, without source inspection."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import tvm_ffi
from tvm.script import from_source, tirx

from tvmflow.ir.tir.tvm_script import parsed

TEXT = """
@T.prim_func(s_tir=True, private=True)
def doubled(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")) -> None:
    for i in range(8):
        with T.sblock("made"):
            v = T.axis.spatial(8, i)
            x: T.let[T.float32] = a[v] * T.float32(2)
            b[v] = T.max(x, 0.0)
"""


def test_a_text_is_the_function_that_tvm_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = from_source(TEXT, extra_vars={"T": tirx})

    def looked(*_: Any) -> None:
        raise AssertionError("the stack was read")

    monkeypatch.setattr(inspect, "stack", looked)
    found = parsed(TEXT)
    assert tvm_ffi.structural_equal(found, expected) and dict(found.attrs) == dict(expected.attrs)
    assert parsed(TEXT) is found

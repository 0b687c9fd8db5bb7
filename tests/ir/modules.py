"""Make small Relax modules: of operators, and with kernels that are given as text."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax

from tvmflow.ir.tir.tvm_script import parsed


def small_module(scale: float = 1.0) -> Any:
    """Return a module with constants of several dtypes, a scalar among them, and one that is read twice."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    weight = relax.const(scale * np.arange(6, dtype=np.float32).reshape(2, 3))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.add(relax.op.multiply(x, weight), weight))
            y = builder.emit(relax.op.add(y, relax.const(2.5, "float32")))
            half = builder.emit(relax.op.astype(y, "bfloat16"))
            half = builder.emit(relax.op.multiply(half, relax.const(np.full((3,), 0.5, ml_dtypes.bfloat16))))
            more = relax.op.add(relax.op.astype(half, "int32"), relax.const(np.array([[7], [-9]], np.int32)))
            output = builder.emit_output(builder.emit(more))
        builder.emit_func_output(output)
    return builder.finalize()


def calling(make: Any) -> Any:
    """Return a module whose main calls what `make(builder, x)` returns."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(make(builder, x)))
        builder.emit_func_output(output)
    return builder.finalize()


def kernel_of(statement: str, annotation: str = "") -> Any:
    """Return the call of a TIR function with one statement beside its own."""
    text = f"""
@T.prim_func(s_tir=True)
def kernel(a: T.Buffer((2, 3), "float32"), c: T.Buffer((2, 3), "float32")):
    for i, j in T.grid(2, 3):
        with T.sblock("c"):
            v, w = T.axis.remap("SS", [i, j])
            {annotation}
            c[v, w] = {statement}
"""

    def make(builder: Any, x: Any) -> Any:
        function = builder.add_func(parsed(text), "kernel")
        return relax.call_tir(function, [x], relax.TensorType((2, 3), "float32"))

    return make

"""Define operators on words of four int8, the first in the lowest byte, for GPU dot products.

Two operators of TensorIR: `tvmflow.word` of four int8, and `tvmflow.dot4` of two words, the sum of four products. GPU
languages have functions for them; LLVM computes them by arithmetic (schedules/intrinsics/math_functions.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm_ffi import get_global_func

from tvmflow.ir.tvm_compat import Call

WORD, DOT = "tvmflow.word", "tvmflow.dot4"
BYTES = 4
_PURE = 1  # TVM's CallEffectKind


@cache
def register() -> None:
    """Register the operators with TVM in this process."""
    register_operator, set_attribute = get_global_func("ir.RegisterOp"), get_global_func("ir.RegisterOpAttr")
    for name in (WORD, DOT):
        register_operator(name, "see tvmflow.ir.tir.packed_words")
        for attribute, value in (("TVectorizable", True), ("TCallEffectKind", _PURE), ("TScriptPrinterName", name)):
            set_attribute(name, attribute, value, 10)


def words_of_weight(weight: Any) -> Any:
    """(OC, IC, KH, KW, 4 of I, b of O) of int8 -> (OC, IC, KH, KW, b of O) of int32."""
    last = np.ascontiguousarray(np.swapaxes(weight, 4, 5))
    return last.view("<i4").reshape(last.shape[:-1]).astype(np.int32)


def words_of_image(data: Any) -> Any:
    """Return a te.Tensor (N, C, H, W) of int32 of one (N, C, H, W, 4) of int8."""
    register()

    def word(*index: Any) -> Any:
        return tirx.call_intrin("int32", WORD, *(data[*index, lane] for lane in range(BYTES)))

    return te.compute(tuple(data.shape[:4]), word, name="words")


def word_of(value: float) -> int:
    """Return the word of four equal int8."""
    return int(np.full(BYTES, int(value), np.int8).view("<i4")[0])


def dot4(a: Any, b: Any) -> Any:
    """Return the dot product of two words."""
    register()
    return tirx.call_intrin("int32", DOT, a, b)


def lower_word(call: Call) -> Any:
    """Lower tvmflow.word to shifts."""
    dtype = str(call.ty.dtype)
    found = tirx.const(0, dtype)
    for at, value in enumerate(call.args):
        found = found | (value.astype(dtype) & tirx.const(255, dtype)) << tirx.const(8 * at, dtype)
    return found


def lower_dot(call: Call) -> Any:
    """Lower tvmflow.dot4 to shifts and multiplications."""
    dtype = str(call.ty.dtype)

    def byte(word: Any, at: int) -> Any:
        return (word << tirx.const(24 - 8 * at, dtype)) >> tirx.const(24, dtype)

    a, b = call.args
    return sum((byte(a, at) * byte(b, at) for at in range(BYTES)), tirx.const(0, dtype))

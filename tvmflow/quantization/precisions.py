"""The precisions, a row each: how a float32 module becomes one that computes in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmflow.errors import UsageError


def _float32(mod: Any) -> Any:
    return mod


def _float16(mod: Any) -> Any:
    """Compute convolutions and products in float16; input and output stay float32."""
    from tvm import relax

    mod = relax.transform.ToMixedPrecision(out_dtype="float16")(mod)
    mod = relax.transform.FoldConstant()(mod)
    return relax.transform.DeadCodeElimination(["main"])(mod)


PRECISIONS: dict[str, Callable[[Any], Any]] = {"float32": _float32, "float16": _float16}


def to_precision(mod: Any, precision: str) -> Any:
    """Return the module in a precision. Raises UsageError for one that this version cannot make."""
    if precision not in PRECISIONS:
        raise UsageError(
            f"precision {precision} cannot be made by this version of tvmflow",
            "one of " + ", ".join(PRECISIONS),
            "choose another precision for the cell",
        )
    return PRECISIONS[precision](mod)

"""Define inputs of a model that have one value, which the import replaces by a constant."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from tvmflow.config.stage_params import Frozen
from tvmflow.config.value_types import Size

MAX_FIXED_VALUES = 4096  # more do not belong in params.yaml
Dtype = Literal["float32", "int32", "int64", "int8", "uint8", "bool"]
DTYPES: tuple[str, ...] = get_args(Dtype)
FLOATS = ("float32", "float16", "bfloat16", "float64")  # of inputs in a file: libraries take float32 for each
_RANGES = {  # of int64: what a float holds exactly
    "bool": (0, 1),
    "int8": (-(1 << 7), (1 << 7) - 1),
    "uint8": (0, (1 << 8) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 53), 1 << 53),
}


class FixedInput(Frozen):
    """An input of one value, which the library does not have: a number, true, false, or lists of them.

    dtype: by default that of the value: bool, int64 or float32. shape: by default that of the value; a number fills it.
    """

    value: Any
    dtype: Dtype | None = None
    shape: Annotated[tuple[Size, ...], Field(max_length=8, strict=False)] | None = None

    @model_validator(mode="after")
    def _is_a_tensor(self) -> FixedInput:
        shape = _shape(self.value)
        if shape is None or math.prod(self.shape or shape) > MAX_FIXED_VALUES:
            raise ValueError(
                f"value: a number, true, false, or lists of equal lengths of them, at most {MAX_FIXED_VALUES}"
            )
        if self.shape is not None and shape not in ((), self.shape):
            raise ValueError(f"a value of shape {list(self.shape)}, as shape says; found {list(shape)}")
        bounds = _RANGES.get(self.dtype_of_value, (-3.4e38, 3.4e38))
        for x in _leaves(self.value):
            if not bounds[0] <= x <= bounds[1] or (self.dtype_of_value in _RANGES and x != int(x)):
                raise ValueError(f"a value of {self.dtype_of_value}; found {x}")
        return self

    @property
    def shape_of_value(self) -> tuple[int, ...]:
        return (_shape(self.value) or ()) if self.shape is None else self.shape

    @property
    def dtype_of_value(self) -> Dtype:
        leaves = list(_leaves(self.value))
        if self.dtype is not None:
            return self.dtype
        return "bool" if _all(leaves, bool) else "int64" if _all(leaves, int) else "float32"

    @property
    def numbers(self) -> tuple[float, ...]:
        """Return all numbers in row-major order."""
        leaves = [float(x) for x in _leaves(self.value)]
        return tuple(leaves * (math.prod(self.shape_of_value) if _shape(self.value) == () else 1))


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of nested lists, None unless they are whole and hold only numbers."""
    if isinstance(value, (bool, int, float)):
        return () if math.isfinite(value) else None
    shapes = {_shape(one) for one in value} if isinstance(value, (list, tuple)) else set()
    inner = next(iter(shapes)) if len(shapes) == 1 else None
    return None if inner is None else (len(value), *inner)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def _all(leaves: list[Any], kind: type) -> bool:
    return all(isinstance(x, kind) and (kind is bool or not isinstance(x, bool)) for x in leaves)

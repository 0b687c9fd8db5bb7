"""Define the arguments of a converter of ONNX operators: one node, its values, and an emitter of Relax operators.

A value is a numpy array (a constant), a Relax expression of fixed shape, a list of values (a sequence), or None (an
input that is left out).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.emitter import Emitter, type_name
from tvmflow.ir.tvm_compat import shape_of
from tvmflow.support.dtypes import numpy_dtype

Array = np.ndarray[Any, Any]
Value = Any


class RefusedNodeError(Exception):
    """A node cannot be converted: the reason, without the operator's name."""


class NodeEmitter(Emitter):
    """Emits operators of Relax; constants may be numpy arrays."""

    def operand(self, value: Any) -> Any:
        return expression(value)

    def te(self, function: Callable[..., Any], *args: Any, name: str) -> Any:
        """Emit a kernel written as a tensor expression."""
        return self.builder.emit_te(function, *map(expression, args), primfunc_name_hint=name)

    def cast(self, value: Value, dtype: str) -> Value:
        if isinstance(value, np.ndarray):
            return value.astype(numpy_dtype(dtype))
        return value if dtype_of(value) == dtype else self.astype(value, dtype)

    def reshape_to(self, value: Value, shape: Sequence[int]) -> Value:
        if isinstance(value, np.ndarray):
            return value.reshape(tuple(shape))
        return value if shape_of(value) == tuple(shape) else self.reshape(value, tuple(int(size) for size in shape))

    def transpose(self, value: Value, axes: Sequence[int]) -> Value:
        if isinstance(value, np.ndarray):
            return np.ascontiguousarray(value.transpose(tuple(axes)))
        return value if list(axes) == list(range(len(axes))) else self.permute_dims(value, [int(axis) for axis in axes])

    def slice_axis(self, value: Value, axis: int, begin: int, end: int) -> Value:
        """Return value[begin:end] along an axis; both are inside the axis."""
        return self.strided_slice(value, [int(axis)], [int(begin)], [int(end)])


def expression(value: Any) -> Any:
    """Return the Relax expression of a value; lists of values and anything else stay as they are."""
    if isinstance(value, (np.ndarray, np.generic)):
        return relax.const(np.ascontiguousarray(value).reshape(value.shape), str(value.dtype))
    if isinstance(value, (list, tuple)) and any(isinstance(part, np.ndarray) for part in value):
        return type(value)(expression(part) for part in value)
    return value


def dims(value: Value) -> tuple[int, ...]:
    """Return the shape of a value."""
    return tuple(value.shape) if isinstance(value, np.ndarray) else shape_of(value)


def dtype_of(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return str(value.dtype)
    return type_name(value)


def is_float(value: Value) -> bool:
    return "float" in dtype_of(value)


@dataclass(frozen=True)
class Node:
    """One node: operator, opset version of its domain, name in messages, attributes with the schema's defaults."""

    op: str
    domain: str
    version: int
    name: str
    inputs: tuple[Value, ...]
    attributes: dict[str, Any]
    outputs: int
    emitter: NodeEmitter

    def input(self, place: int) -> Value | None:
        return self.inputs[place] if place < len(self.inputs) else None

    def constant(self, place: int, what: str) -> Array:
        """Return a constant input. Raises RefusedNodeError if it depends on data."""
        value = self.inputs[place] if place < len(self.inputs) else None
        if not isinstance(value, np.ndarray):
            raise RefusedNodeError(f"{what} depends on the data; it must be a constant")
        return value

    def numbers(self, place: int, name: str) -> list[int] | None:
        """Return integers that are an attribute in old opsets and an input in new ones; None if left out."""
        if name in self.attributes:
            value = self.attributes[name]
            return [int(number) for number in value] if isinstance(value, (list, tuple)) else [int(value)]
        if self.input(place) is None:
            return None
        return [int(number) for number in self.constant(place, f"its input {name}").reshape(-1)]

    def text(self, name: str, default: str = "") -> str:
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def refuse(self, reason: str) -> RefusedNodeError:
        return RefusedNodeError(reason)


Converter = Callable[[Node], Any]  # a value, or a tuple of them

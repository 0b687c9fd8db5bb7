"""Define the arguments of a TFLite converter: inputs as Relax values or arrays, attributes, and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.tensorflow.tflite_graph import Array, Operator, Tensor
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.tvm_compat import shape_of, type_of
from tvmflow.support.errors import UnsupportedOperatorError

Value = Any  # a Relax expression, or an array if the value is known
Convert = Callable[["Operation"], Any]
_NO_ACTIVATION, _RELU, _RELU_N1_TO_1, _RELU6, _TANH, _SIGN_BIT = range(6)


class Operation:
    """An operator while it is converted.

    Values of quantized tensors are dequantized: a converter computes with real numbers, and its results are quantized
    to the types of the output tensors behind it. Exact results on integers are the same that way.
    """

    def __init__(self, builder: Any, node: Operator, stored: dict[int, Value]) -> None:
        self.builder, self.node, self.options = builder, node, node.options
        self._stored = stored

    @property
    def output(self) -> Tensor:
        return self.node.outputs[0]

    def emit(self, expression: Any) -> Any:
        return self.builder.emit(expression)

    def has(self, index: int) -> bool:
        """Whether an input is there; the last may be left out."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def tensor(self, index: int) -> Tensor:
        tensor = self.node.inputs[index] if index < len(self.node.inputs) else None
        if tensor is None:
            raise self.unsupported(f"without input {index}")
        return tensor

    def is_known(self, index: int) -> bool:
        """Whether an input's value is known before the model runs."""
        return isinstance(self.stored(index), np.ndarray)

    def stored(self, index: int) -> Value:
        """Return an input as the file stores it: quantized ones as integers."""
        tensor = self.tensor(index)
        if tensor.index not in self._stored:
            raise self.unsupported(f"reading {tensor.name!r}, which has no value")
        return self._stored[tensor.index]

    def value(self, index: int) -> Any:
        """Return an input as a Relax expression of real numbers, or of its own type if it is not quantized."""
        tensor, stored = self.tensor(index), self.stored(index)
        if self.is_complex(index):
            raise self.unsupported("of complex numbers")
        if isinstance(stored, np.ndarray):
            return self.constant(tensor.real(stored) if tensor.is_quantized else stored)
        if not tensor.is_quantized:
            return stored
        assert tensor.quantization is not None
        return self.emit(relax.op.dequantize(stored, *_scale_and_zero(tensor), axis=tensor.quantization.axis))

    def values(self) -> list[Any]:
        return [self.value(index) for index in range(len(self.node.inputs)) if self.has(index)]

    def array(self, index: int) -> Array:
        """Return an input that must be known, as real numbers. Raises UnsupportedOperatorError."""
        tensor, stored = self.tensor(index), self.stored(index)
        if not isinstance(stored, np.ndarray):
            raise self.unsupported(f"whose input {tensor.name!r} is computed")
        return tensor.real(stored) if tensor.is_quantized else stored

    def integers(self, index: int) -> list[int]:
        """Return an input that must be known as a list of integers."""
        return [int(number) for number in self.array(index).reshape(-1)]

    def shape(self, index: int) -> tuple[int, ...]:
        stored = self.stored(index)
        shape = tuple(stored.shape) if isinstance(stored, np.ndarray) else shape_of(stored)
        return shape[:-1] if self.is_complex(index) else shape

    def is_complex(self, index: int) -> bool:
        """Whether an input is complex: its real and imaginary parts are the last axis of `stored`."""
        return self.tensor(index).dtype.startswith("complex")

    def constant(self, value: Any, dtype: str | None = None) -> Any:
        array = np.asarray(value)
        return constant(array, dtype or str(array.dtype))

    def number(self, value: float, index: int = 0) -> Any:
        """Return a number in the type in which input `index` is computed."""
        tensor = self.tensor(index)
        return self.constant(value, "float32" if tensor.is_quantized else tensor.dtype)

    def activated(self, value: Any) -> Any:
        """Apply the activation that the options fuse into the operator."""
        kind = int(getattr(self.options, "fusedActivationFunction", _NO_ACTIVATION) or _NO_ACTIVATION)
        if kind == _NO_ACTIVATION:
            return value
        value = self.emit(value)
        dtype = str(type_of(value).dtype)
        if kind == _RELU:
            return relax.op.nn.relu(value) if dtype == "float32" else relax.op.maximum(value, self.constant(0, dtype))
        if kind in (_RELU_N1_TO_1, _RELU6):
            return relax.op.clip(value, *((-1, 1) if kind == _RELU_N1_TO_1 else (0, 6)))
        if kind == _TANH:
            return relax.op.tanh(value)
        raise self.unsupported("the fused activation SIGN_BIT")

    def unsupported(self, what: str) -> UnsupportedOperatorError:
        return UnsupportedOperatorError(
            f"TFLite operator {self.node} {what}",
            "one that docs/tflite_operators.md lists",
            "replace it in the model, or export the model to ONNX",
        )


def _scale_and_zero(tensor: Tensor) -> tuple[Any, Any]:
    assert tensor.quantization is not None
    scale, zero = tensor.quantization.scale, tensor.quantization.zero
    if scale.size == 1:
        scale, zero = scale.reshape(()), zero.reshape(-1)[:1].reshape(())
    return constant(scale, "float32"), constant(zero, tensor.dtype)


def quantized(value: Any, tensor: Tensor) -> Any:
    """Return real numbers in the integers of a tensor."""
    assert tensor.quantization is not None
    return relax.op.quantize(value, *_scale_and_zero(tensor), axis=tensor.quantization.axis, out_dtype=tensor.dtype)


def transposed(operation: Operation, value: Any, axes: Sequence[int]) -> Any:
    """Emit a transposition."""
    return operation.emit(relax.op.permute_dims(value, list(axes)))


def to_channels_first(operation: Operation, value: Any) -> Any:
    """Emit (N, H, W, C) -> (N, C, H, W)."""
    return transposed(operation, value, [0, 3, 1, 2])


def to_channels_last(operation: Operation, value: Any) -> Any:
    """Emit (N, C, H, W) -> (N, H, W, C)."""
    return transposed(operation, value, [0, 2, 3, 1])

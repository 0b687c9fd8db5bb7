"""Emit a network as Relax, each layer in float or in integers.

Conversions are emitted only where the dtype changes. An arithmetic (`int8`, `vta_int8`) emits the integers of a layer;
this file determines the order, the float dtype, and the dtypes in which each value exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from tvmflow.ir.relax.graph import Argument, Array, Graph, Other, Ref, Step, operators_named
from tvmflow.ir.relax.layers import (
    ADD,
    AFFINE,
    CONCAT,
    CONV,
    DENSE,
    MEAN,
    MOVE,
    SPLIT,
    TRANSPOSED,
    Layer,
    Network,
    is_item,
)
from tvmflow.ir.relax.scales import Scale, signed, unsigned
from tvmflow.ir.tvm_compat import Expr, type_arguments


@dataclass(frozen=True)
class Quantized:
    """An integer value of the emitted graph, and its scale.

    parts: the operands of a concat, for readers that join them at their own scales.
    """

    value: Any
    scale: Scale
    parts: tuple[Quantized, ...] = ()


# Operators that compute each element from the same element of their operands.
_POINTWISE = operators_named(
    """
    add subtract multiply divide maximum minimum clip abs exp log negative sigmoid tanh erf greater less where
    nn.relu nn.leakyrelu nn.silu nn.gelu nn.gelu_tanh
    """
)


_MOVING = (MOVE, SPLIT, CONCAT)
QUANTIZE, DEQUANTIZE = "relax.quantize", "relax.dequantize"


class Arithmetic(Protocol):
    """The integer arithmetic of layers.

    rounds_for_all: whether a function of one integer that layers read as an integer is quantized for float steps, too:
    as x * sigmoid(x) of a convolution, of which a squeeze-and-excite block takes means and which it scales. It is then
    stored in 8 bits instead of 32.
    """

    rounds_for_all: ClassVar[bool]

    def can(
        self, layer: Layer, inputs_are_integer: list[bool], scales: list[Scale | None], read_in_float: bool
    ) -> bool:
        """Whether to compute a layer in integers.

        inputs_are_integer: for each input whether it is an integer already; scales: of the inputs; read_in_float:
        whether all readers are float.
        """

    def layer(self, writer: Writer, layer: Layer, inputs: list[Quantized]) -> Quantized:
        """Emit the layer and return its integer value."""

    def quantize(self, writer: Writer, name: str, value: Any, scale: Scale) -> Quantized: ...


class Writer:
    """Emit one module. scales: value name -> its scale; layers in `in_float` stay float."""

    def __init__(
        self, network: Network, arithmetic: Arithmetic | None, scales: Mapping[str, Scale], in_float: frozenset[str]
    ) -> None:
        from tvm import relax

        self.network, self.arithmetic, self.scales, self.in_float = network, arithmetic, scales, in_float
        self.builder = relax.BlockBuilder()
        self.floats: dict[str, Any] = {}
        self.integers: dict[str, Quantized] = {}
        self.integer_layers: list[str] = []
        self.users = network.users()
        self.sources: dict[str, str] = {}  # value -> the only integer value that it is a function of

    def module(self) -> Any:
        """Return the IRModule; afterwards `integer_layers` lists the layers that compute in integers."""
        return build_main(self.builder, self.network.graph, self._emit_body)

    def _emit_body(self, parameters: dict[str, Any]) -> list[Any]:
        self.floats |= parameters
        for item in self.network.items:
            if isinstance(item, Layer):
                self._layer(item)
            elif self._is_exact(item):
                self._take_over(item)
            else:
                self.floats[item.name] = self.emit(self._emit_again(item), item.name)
                if item.op in _POINTWISE:
                    self._quantize_for_all(item.name, item.refs)
        return [self.get_float(name) for name in self.network.outputs]

    def emit(self, expression: Expr, name: str) -> Any:
        return self.builder.emit(expression, name)

    def is_output(self, name: str) -> bool:
        """Whether only the network's caller reads a value, or a softmax before that."""
        readers = self.users[name]
        return name in self.network.outputs or all(isinstance(r, Step) and r.op == "relax.nn.softmax" for r in readers)

    def get_float(self, name: str) -> Any:
        if name not in self.floats:
            self.floats[name] = self._dequantize(name, self.integers[name])
        return self.floats[name]

    def get_integer(self, name: str) -> Quantized:
        if name not in self.integers:
            assert self.arithmetic is not None
            self.integers[name] = self.arithmetic.quantize(self, name, self.floats[name], self.scales[name])
        return self.integers[name]

    def _dequantize(self, name: str, quantized: Quantized) -> Any:
        from tvm import relax

        value = relax.op.astype(quantized.value, "float32")
        if quantized.scale.zero_point:
            value = relax.op.subtract(value, constant(float(quantized.scale.zero_point), "float32"))
        return self.emit(relax.op.multiply(value, constant(quantized.scale.factor, "float32")), f"{name}_float")

    def _layer(self, layer: Layer) -> None:
        is_integer = [name in self.integers or self._is_rounded_behind(layer, name) for name in layer.inputs]
        of_integers = is_item(layer.step) and layer.inputs[0] in self.integers
        to_integers = self.arithmetic is not None and (layer.name not in self.in_float or of_integers)
        if (
            to_integers
            and self.arithmetic is not None
            and self.arithmetic.can(
                layer, is_integer, [self.scales.get(name) for name in layer.inputs], self._is_read_in_float(layer)
            )
        ):
            inputs = [self.get_integer(name) for name in layer.inputs]
            self.integers[layer.name] = self.arithmetic.layer(self, layer, inputs)
            self.integer_layers.append(layer.name)
            self.sources[layer.name] = layer.name
        else:
            self.floats[layer.name] = self._float_layer(layer)
            if layer.kind == AFFINE and layer.name not in self.in_float:
                self._quantize_for_all(layer.name, layer.inputs)

    def _is_rounded_behind(self, layer: Layer, name: str) -> bool:
        """Whether layers behind one that only moves round its input anyway, a function of one integer, as x *
        sigmoid(x) of a convolution is: it is rounded before it is moved, then.
        """
        return (
            layer.kind in _MOVING
            and self.arithmetic is not None
            and self.arithmetic.rounds_for_all
            and name in self.scales
            and bool(self.sources.get(name))
            and self._is_read_by_layers(layer.name)
        )

    def _is_read_by_layers(self, name: str) -> bool:
        """Whether layers that compute in integers read a value, or what only moves it."""
        return name not in self.network.outputs and any(
            isinstance(reader, Layer)
            and reader.name not in self.in_float
            and (reader.kind not in _MOVING or self._is_read_by_layers(reader.name))
            for reader in self.users[name]
        )

    def _quantize_for_all(self, name: str, inputs: Sequence[str]) -> None:
        """Quantize a function of one integer once, if both layers and steps read it."""
        sources = {self.sources.get(given, "") for given in inputs}
        if len(sources) != 1 or "" in sources:
            return
        (self.sources[name],) = sources
        readers = self.users[name]
        by_layers = any(isinstance(reader, Layer) and reader.name not in self.in_float for reader in readers)
        if (
            self.arithmetic is not None
            and self.arithmetic.rounds_for_all
            and name in self.scales
            and name not in self.network.outputs  # outputs are not rounded
            and by_layers
            and any(isinstance(reader, Step) for reader in readers)
        ):
            self.integers[name] = self.arithmetic.quantize(self, name, self.floats.pop(name), self.scales[name])
            self.sources[name] = name

    def _is_exact(self, step: Step) -> bool:
        """Whether a step converts between a number and its integer at the scale that the number has anyway."""
        if step.op not in (QUANTIZE, DEQUANTIZE) or not isinstance(step.args[0], Ref):
            return False
        number = step.name if step.op == DEQUANTIZE else step.args[0].name
        dtype = step.dtype if step.op == QUANTIZE else self.network.graph.kind(step.args[0].name).dtype
        scale = self.integers[number].scale if number in self.integers else self.scales.get(number)
        if scale is None or (step.op == QUANTIZE and number not in self.integers):
            return False
        factor, zero = (np.asarray(argument) for argument in step.args[1:3])
        if factor.size != 1 or zero.size != 1 or scale.per_channel is not None or dtype not in ("int8", "uint8"):
            return False
        at = signed(scale) if dtype == "int8" else unsigned(scale)
        return float(factor.reshape(-1)[0]) == at.scale and int(zero.reshape(-1)[0]) == at.zero_point

    def _take_over(self, step: Step) -> None:
        (source,) = step.refs
        if step.op == QUANTIZE:
            stored = self.integers[source]
            self.floats[step.name] = self._moved(stored.value, stored.scale.dtype, step.dtype, step.name)
        else:
            scale, dtype = self.scales[step.name], self.network.graph.kind(source).dtype
            value = self._moved(self.get_float(source), dtype, scale.dtype, f"{step.name}_q")
            self.integers[step.name] = Quantized(value, scale)

    def _moved(self, value: Any, dtype: str, to: str, name: str) -> Any:
        """Return the integers of int8 or uint8 in the other dtype, which are 128 apart."""
        from tvm import relax

        if dtype == to:
            return value
        offset = constant(128 if to == "uint8" else -128, "int32")
        return self.emit(relax.op.astype(relax.op.add(relax.op.astype(value, "int32"), offset), to), name)

    def _is_read_in_float(self, layer: Layer) -> bool:
        """Whether only steps without an integer form read a layer."""
        return layer.name not in self.network.outputs and all(
            isinstance(reader, Step) for reader in self.users[layer.name]
        )

    def _float_layer(self, layer: Layer) -> Any:
        from tvm import relax

        if layer.kind in (ADD, MEAN, *_MOVING):
            value = self._call(layer.step, dict(zip(layer.step.refs, layer.inputs, strict=True)))
            return self._activation(value, layer, layer.name) if layer.has_activation else self.emit(value, layer.name)
        data = self.get_float(layer.inputs[0])
        if layer.kind == CONV:
            assert layer.weight is not None
            value = convolution(layer.step, data, constant(layer.weight, "float32"), "float32")
        elif layer.kind == TRANSPOSED:
            value = transposed_convolution(layer.step, data, constant(layer.weight, "float32"), "float32")
        elif layer.kind == DENSE:
            value = relax.op.matmul(data, constant(layer.weight, "float32"))
        else:
            value = data
            if layer.weight is not None and np.any(layer.weight != 1):
                value = relax.op.multiply(value, constant(self.column(layer, layer.weight), "float32"))
        nothing_else = value is data and not layer.has_activation  # each layer must emit a value of its own
        if layer.bias is not None and (layer.kind != AFFINE or np.any(layer.bias != 0) or nothing_else):
            value = relax.op.add(value, constant(self.column(layer, layer.bias), "float32"))
        if not layer.has_activation:
            return self.emit(value, layer.name)
        if layer.kind in (CONV, TRANSPOSED, DENSE):
            value = self.emit(value, f"{layer.name}_before")
        return self._activation(value, layer, layer.name)

    def _activation(self, value: Any, layer: Layer, name: str) -> Any:
        from tvm import relax

        low, high = np.asarray(layer.low), np.asarray(layer.high)
        if low.ndim == 0 and high.ndim == 0:
            if low == 0 and math.isinf(high):
                return self.emit(relax.op.nn.relu(value), name)
            if np.isfinite(low) and np.isfinite(high):
                return self.emit(relax.op.clip(value, float(low), float(high)), name)
        if np.any(np.isfinite(high)):
            value = relax.op.minimum(value, constant(self.column(layer, high), "float32"))
        if np.any(np.isfinite(low)):
            value = relax.op.maximum(value, constant(self.column(layer, low), "float32"))
        return self.emit(value, name)

    def column(self, layer: Layer, vector: Array) -> Array:
        """Return a number or (C,) as an array that broadcasts over (N, C, ...); a number if all channels of an AFFINE
        are equal.
        """
        vector = np.asarray(vector)
        if layer.kind == AFFINE and vector.ndim == 1 and np.all(vector == vector[0]):
            return np.asarray(vector[0])
        if vector.ndim in (0, len(layer.shape)):
            return vector
        return vector.reshape((1, -1) + (1,) * (len(layer.shape) - 2))

    def _call(self, step: Step, renamed: Mapping[str, str]) -> Any:
        return rebuild_call(step, lambda name: self.get_float(renamed.get(name, name)))

    def _emit_again(self, step: Step) -> Any:
        if step.op == "constant":
            return constant(np.asarray(step.args[0]), step.dtype)
        return rebuild_call(step, self.get_float)


def build_main(builder: Any, graph: Graph, body: Callable[[dict[str, Any]], Sequence[Any]]) -> Any:
    """Return a module whose main has the inputs of a graph and returns body(inputs), without unused bindings.

    The module keeps the TIR functions that the graph's steps call. A single output is returned as it is, several as a
    tuple.
    """
    import tvm
    from tvm import relax

    parameters = {
        name: relax.Var(name, relax.TensorType(kind.shape, kind.dtype)) for name, kind in graph.inputs.items()
    }
    with builder.function("main", list(parameters.values())):
        with builder.dataflow():
            outputs = [builder.emit_output(value, "output") for value in body(parameters)]
            output = outputs[0] if len(outputs) == 1 else builder.emit_output(relax.Tuple(outputs), "outputs")
        builder.emit_func_output(output)
    mod = tvm.IRModule({**dict(builder.get().functions.items()), **graph.kernels()})
    return relax.transform.DeadCodeElimination(["main"])(mod)


def rebuild_call(step: Step, value_of: Any) -> Any:
    """Return the step's Relax expression with its values replaced by `value_of(name)`."""
    from tvm import relax

    def build(argument: Argument) -> Any:
        if isinstance(argument, Ref):
            return value_of(argument.name)
        if isinstance(argument, tuple):
            return relax.Tuple([build(item) for item in argument])
        if isinstance(argument, Other):
            return argument.expression
        return constant(argument, str(argument.dtype))

    if step.op == "constant":
        return constant(step.args[0], step.dtype)
    if step.op.startswith("get_item."):
        return relax.TupleGetItem(build(step.args[0]), int(step.op.split(".")[1]))
    return relax.Call(step.call.op, [build(a) for a in step.args], step.call.attrs, type_arguments(step.call))


def constant(value: Any, dtype: str) -> Any:
    from tvm import relax

    kept = np.asarray(value)
    return relax.const(np.array(kept if str(kept.dtype) == dtype else kept.astype(dtype), order="C"), dtype)


def convolution(step: Step, data: Any, weight: Any, out_dtype: str, padding: list[int] | None = None) -> Any:
    """Return conv2d with the attributes of a step; `padding` [top, left, bottom, right] overrides the step's."""
    from tvm import relax

    attrs = step.call.attrs
    return relax.op.nn.conv2d(
        data,
        weight,
        strides=list(attrs.strides),
        padding=list(attrs.padding) if padding is None else padding,
        dilation=list(attrs.dilation),
        groups=attrs.groups,
        data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout,
        out_dtype=out_dtype,
    )


def transposed_convolution(step: Step, data: Any, weight: Any, out_dtype: str) -> Any:
    """Return conv2d_transpose with the attributes of a step."""
    from tvm import relax

    attrs = step.call.attrs
    return relax.op.nn.conv2d_transpose(
        data,
        weight,
        strides=list(attrs.strides),
        padding=list(attrs.padding),
        output_padding=list(attrs.output_padding),
        dilation=list(attrs.dilation),
        groups=attrs.groups,
        data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout,
        out_dtype=out_dtype,
    )


def float_module(network: Network) -> Any:
    """Return the network as a float32 module whose values are named after its layers."""
    return Writer(network, None, {}, frozenset()).module()

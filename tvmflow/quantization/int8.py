"""Quantize to int8: 8-bit activations with a zero point, 8-bit weights per channel, 32-bit sums.

A layer computes  y = clip(round(float32(sum + offset) * factor) + zero point)  where sum and offset are int32 and
factor is float32, per channel; bias and the zero point of the input are in the offset. Halves are rounded to even.
Every step is rounded as in IEEE 754, and none can be contracted with another, so that the output is equal on all
processors. Source of the scheme: B. Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, section 2; the factor is float32, which processors multiply fastest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from tvm import relax

from tvmflow.ir.relax.emit import Quantized, Writer, constant, convolution, rebuild_call, transposed_convolution
from tvmflow.ir.relax.graph import Array, static_shape
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
    joins_unscaled,
)
from tvmflow.ir.relax.numpy_interpreter import window_counts
from tvmflow.ir.relax.scales import Scale, find_exact_scales, quantize_weight, to_fixed_point

SCALED = "_scaled"  # suffix of a layer's value before the clip, in units of the output's scale
_ADD_BITS = 20
_MOST = 2**15 - 1  # largest multiplier of a product of 16 bits
_SHIFTS = range(11, 17)  # of such products: errors of a multiplier add at most 0.03 to a result; most that is narrowed
_FARTHEST = 2.0**13  # largest bias in units of the output; beyond it no product of these shifts is within 8 bits
_BIAS_BITS = 29  # most bits of a bias in units of the sum; a channel of tiny weights gets larger units


@dataclass(frozen=True)
class Int8Arithmetic:
    """The arithmetic of int8 layers.

    per_channel: a weight scale for each output channel, or one for the layer. came_quantized: the model was quantized
    before, so that weights are multiples of a scale.
    """

    per_channel: bool = True
    came_quantized: bool = False

    rounds_for_all: ClassVar[bool] = True

    def _weights(self, layer: Layer, channel_axis: int, least: Array | None = None) -> tuple[Array, Array]:
        """Return a layer's int8 weights and scales, those of a quantized model if there are any."""
        assert layer.weight is not None
        found = find_exact_scales(layer.weight, channel_axis) if self.came_quantized else None
        if found is not None and (least is None or np.all(found[1] >= least)):
            return found
        return quantize_weight(layer.weight, channel_axis if self.per_channel else None, least)

    def can(
        self, layer: Layer, inputs_are_integer: list[bool], scales: list[Scale | None], read_in_float: bool
    ) -> bool:
        if layer.kind == TRANSPOSED:  # each output reads another number of the zeros between its pixels
            return all(scale is not None and scale.zero_point == 0 for scale in scales)
        if layer.kind in (CONV, DENSE):
            return True
        if layer.kind == AFFINE and read_in_float:  # as in x * clip(x + 3, 0, 6): 8 bits would only lose accuracy
            return False
        if layer.kind == CONCAT and self.came_quantized and len(set(scales)) == 1 and scales[0] is not None:
            return any(inputs_are_integer)  # as the file joins a state and a window of the input
        return any(inputs_are_integer) if layer.kind == ADD else all(inputs_are_integer)

    def quantize(self, writer: Writer, name: str, value: Any, scale: Scale) -> Quantized:
        scaled = relax.op.round(relax.op.divide(value, constant(scale.scale, "float32")))
        if scale.zero_point:
            scaled = relax.op.add(scaled, constant(float(scale.zero_point), "float32"))
        clipped = relax.op.clip(scaled, float(scale.low), float(scale.high))
        return Quantized(writer.emit(relax.op.astype(clipped, scale.dtype), f"{name}_q"), scale)

    def layer(self, writer: Writer, layer: Layer, inputs: list[Quantized]) -> Quantized:
        if layer.kind in (MOVE, SPLIT):
            return emit_move(writer, layer, inputs[0])
        scale = writer.scales[layer.name]
        if layer.kind == DENSE and writer.is_output(layer.name) and not layer.has_activation:
            return self._output(writer, layer, inputs[0])
        write = {
            CONV: self._conv,
            TRANSPOSED: self._transposed,
            DENSE: self._dense,
            ADD: self._add,
            AFFINE: self._affine,
            MEAN: self._mean,
            CONCAT: self._concat,
        }[layer.kind]
        apart = layer.kind == CONCAT and joins_unscaled(writer.network, layer, writer.users[layer.name])
        return Quantized(write(writer, layer, inputs, scale), scale, tuple(inputs) if apart else ())

    def _conv(self, writer: Writer, layer: Layer, inputs: list[Quantized], out: Scale) -> Any:
        assert layer.weight is not None
        data, zero = inputs[0].value, inputs[0].scale.zero_point
        weight, weight_scales = self._weights(layer, 0, _least_scales(layer, inputs[0].scale))
        padding = [int(p) for p in layer.step.call.attrs.padding]
        if zero and any(padding):
            top, left, bottom, right = padding
            data = writer.emit(
                relax.op.nn.pad(data, [0, 0, 0, 0, top, bottom, left, right], pad_value=float(zero)),
                f"{layer.name}_padded",
            )
            padding = [0, 0, 0, 0]
        total = convolution(layer.step, data, constant(weight, "int8"), "int32", padding)
        return self._finish(writer, layer, total, inputs[0].scale, weight_scales, weight.sum((1, 2, 3), np.int64), out)

    def _transposed(self, writer: Writer, layer: Layer, inputs: list[Quantized], out: Scale) -> Any:
        assert layer.weight is not None
        weight, weight_scales = self._weights(layer, 1, _least_scales(layer, inputs[0].scale))
        total = transposed_convolution(layer.step, inputs[0].value, constant(weight, "int8"), "int32")
        sums = weight.sum((0, 2, 3), np.int64)
        return self._finish(writer, layer, total, inputs[0].scale, weight_scales, sums, out)

    def _dense(self, writer: Writer, layer: Layer, inputs: list[Quantized], out: Scale) -> Any:
        assert layer.weight is not None
        weight, weight_scales = self._weights(layer, 1, _least_scales(layer, inputs[0].scale))
        total = relax.op.matmul(inputs[0].value, constant(weight, "int8"), out_dtype="int32")
        return self._finish(writer, layer, total, inputs[0].scale, weight_scales, weight.sum(0, np.int64), out)

    def _output(self, writer: Writer, layer: Layer, data: Quantized) -> Quantized:
        """Emit the network's output in 32 bits: 8 bits would cost accuracy and save nothing."""
        assert layer.weight is not None
        weight, weight_scales = self._weights(layer, 1)
        scales = np.broadcast_to(data.scale.scale * weight_scales, (weight.shape[1],))
        bias = _bias(layer, len(scales))
        offset = np.clip(np.rint(bias / scales), -(2.0**30), 2.0**30) - data.scale.zero_point * weight.sum(0, np.int64)
        total = relax.op.matmul(data.value, constant(weight, "int8"), out_dtype="int32")
        total = writer.emit(relax.op.add(total, constant(offset[None], "int32")), layer.name + SCALED)
        return Quantized(total, Scale(1.0, 0, "int32", -(2**31), 2**31 - 1, tuple(float(s) for s in scales)))

    def _affine(self, writer: Writer, layer: Layer, inputs: list[Quantized], out: Scale) -> Any:
        """Emit a separate batch norm, whose factor may be 0 with a nonzero bias: in 32 bits if multipliers of 16 bits
        are exact enough, in 64 otherwise.
        """
        assert layer.weight is not None
        data, scales, zeros = _join_unscaled(writer, layer, inputs[0])
        factors, bias = scales * layer.weight.astype(np.float64) / out.scale, _bias(layer, len(scales)) / out.scale
        shift = _shift_of_products(factors)
        dtype = "int64" if shift is None else "int32"
        if shift is None:
            multiplier, shift = to_fixed_point(factors)
            bias = np.clip(bias, -(2.0**15), 2.0**15)
        else:
            multiplier = np.minimum(np.rint(factors * 2.0**shift), _MOST).astype(np.int64)
            bias = np.clip(bias, -_FARTHEST, _FARTHEST)
        offset = np.rint(bias * 2.0**shift).astype(np.int64)
        offset += (out.zero_point << shift) + ((1 << shift) >> 1) - zeros * multiplier
        value = relax.op.astype(data, dtype)
        value = relax.op.multiply(value, constant(writer.column(layer, multiplier), dtype))
        value = relax.op.add(value, constant(writer.column(layer, offset), dtype))
        value = writer.emit(relax.op.right_shift(value, constant(shift, dtype)), layer.name + SCALED)
        return self._clip(writer, layer, value, out, dtype)

    def _finish(
        self,
        writer: Writer,
        layer: Layer,
        total: Any,
        data: Scale,
        weight_scales: Array,
        weight_sums: Array,
        out: Scale,
    ) -> Any:
        units = np.broadcast_to(data.scale * weight_scales, weight_sums.shape)
        bias = _bias(layer, len(weight_sums))
        offset = np.rint(np.clip(bias / units, -(2.0**30), 2.0**30)) - data.zero_point * weight_sums
        return self._rescale(writer, layer, total, offset, units / out.scale, out)

    def _rescale(self, writer: Writer, layer: Layer, total: Any, offset: Array, factors: Array, out: Scale) -> Any:
        """Emit clip(round((total + offset) * factor) + zero point); total is int32."""
        if np.any(offset):
            total = relax.op.add(total, constant(writer.column(layer, offset), "int32"))
        value = relax.op.multiply(relax.op.astype(total, "float32"), constant(writer.column(layer, factors), "float32"))
        value = relax.op.round(value)
        if out.zero_point:
            value = relax.op.add(value, constant(float(out.zero_point), "float32"))
        return self._clip(writer, layer, writer.emit(value, layer.name + SCALED), out, "float32")

    def _clip(self, writer: Writer, layer: Layer, value: Any, out: Scale, dtype: str) -> Any:
        low = np.clip(_limit(layer.low, out), out.low, out.high).astype(np.int64)
        high = np.clip(_limit(layer.high, out), out.low, out.high).astype(np.int64)
        return emit_clipped(writer, layer, value, (low, high), dtype, out.dtype)

    def _add(self, writer: Writer, layer: Layer, inputs: list[Quantized], out: Scale) -> Any:
        """Emit a residual addition; products of 8-bit operands fit into int32, with multipliers of 16 bits if these are
        exact enough.
        """
        factors = [operand.scale.scale / out.scale for operand in inputs]
        shift, most = _shift_of_products(np.asarray(factors)), _MOST
        if shift is None:
            shift, most = _small_shift(factors), 1 << _ADD_BITS
        multipliers = [min(round(factor * 2.0**shift), most) for factor in factors]
        value: Any = None
        for operand, multiplier in zip(inputs, multipliers, strict=True):
            product = relax.op.multiply(relax.op.astype(operand.value, "int32"), constant(multiplier, "int32"))
            value = product if value is None else relax.op.add(value, product)
        zeros = sum(operand.scale.zero_point * m for operand, m in zip(inputs, multipliers, strict=True))
        offset = (out.zero_point << shift) + ((1 << shift) >> 1) - zeros
        value = relax.op.add(value, constant(offset, "int32"))
        value = writer.emit(relax.op.right_shift(value, constant(shift, "int32")), layer.name + SCALED)
        return self._clip(writer, layer, value, out, "int32")

    def _concat(self, writer: Writer, layer: Layer, inputs: list[Quantized], out: Scale) -> Any:
        parts = []
        for index, operand in enumerate(inputs):
            if operand.scale == out:
                parts.append(operand.value)
                continue
            factor = operand.scale.scale / out.scale
            shift = _small_shift([factor])
            multiplier = round(factor * 2.0**shift)
            offset = (out.zero_point << shift) + ((1 << shift) >> 1) - operand.scale.zero_point * multiplier
            value = relax.op.multiply(relax.op.astype(operand.value, "int32"), constant(multiplier, "int32"))
            value = relax.op.right_shift(relax.op.add(value, constant(offset, "int32")), constant(shift, "int32"))
            value = relax.op.astype(relax.op.clip(value, out.low, out.high), out.dtype)
            parts.append(writer.emit(value, f"{layer.name}_part{index}"))
        return writer.emit(relax.op.concat(parts, axis=int(layer.step.call.attrs.axis)), f"{layer.name}_q")

    def _mean(self, writer: Writer, layer: Layer, inputs: list[Quantized], out: Scale) -> Any:
        """Emit average pooling: integer sums, with the division in the factor."""
        data = inputs[0].scale
        total, divisors, counts = window_sums(writer, layer, inputs[0].value)
        return self._rescale(writer, layer, total, -data.zero_point * counts, data.scale / out.scale / divisors, out)


def emit_move(writer: Writer, layer: Layer, data: Quantized) -> Quantized:
    """Emit a layer that only moves integers."""
    moved = rebuild_call(layer.step, lambda _name: data.value)
    return Quantized(writer.emit(moved, f"{layer.name}_q"), data.scale)


def emit_clipped(
    writer: Writer, layer: Layer, value: Any, limits: tuple[Array, Array], dtype: str, out_dtype: str
) -> Any:
    """Emit the end of a layer: a clip of a value of `dtype` to limits, of all or of each channel, and a cast."""
    low, high = limits
    if low.ndim == 0 and high.ndim == 0:
        number = float if dtype == "float32" else int
        value = relax.op.clip(value, number(low), number(high))
    else:
        value = relax.op.minimum(value, constant(writer.column(layer, high), dtype))
        value = relax.op.maximum(value, constant(writer.column(layer, low), dtype))
    return writer.emit(relax.op.astype(value, out_dtype), f"{layer.name}_q")


def window_sums(writer: Writer, layer: Layer, data: Any) -> tuple[Any, Array, Array]:
    """Emit the int32 sums of an average; return them, the divisors, and the number of elements besides padding of each.

    divisors and counts: numbers, or (1, 1, OH, OW) if windows reach over the edge. Sums of sliding windows are a
    depthwise convolution with ones.
    """
    step = layer.step
    attrs, shape = step.call.attrs, static_shape(data)[0]
    if step.op == "relax.mean":
        axes = [int(a) for a in attrs.axis]
        count = np.asarray(float(shape[2] * shape[3]))
        total = relax.op.sum(relax.op.astype(data, "int32"), axis=axes, keepdims=bool(attrs.keepdims))
        return writer.emit(total, f"{layer.name}_sum"), count, count
    kernel, strides = [int(k) for k in attrs.pool_size], [int(s) for s in attrs.strides]
    top, left, bottom, right = (int(p) for p in attrs.padding)
    height, width = layer.shape[2:]
    bottom = max(bottom, (height - 1) * strides[0] + kernel[0] - shape[2] - top)
    right = max(right, (width - 1) * strides[1] + kernel[1] - shape[3] - left)
    ones = constant(np.ones((shape[1], 1, *kernel)), "int8")
    total = relax.op.nn.conv2d(
        data, ones, strides=strides, padding=[top, left, bottom, right], groups=shape[1], out_dtype="int32"
    )
    counts = window_counts(shape, step)
    divisors = np.full_like(counts, float(np.prod(kernel))) if attrs.count_include_pad else counts
    if np.ptp(counts) == 0:
        counts, divisors = counts.reshape(-1)[0], divisors.reshape(-1)[0]
    return writer.emit(total, f"{layer.name}_sum"), np.asarray(divisors), np.asarray(counts)


def _join_unscaled(writer: Writer, layer: Layer, data: Quantized) -> tuple[Any, Array, Array]:
    """Return a layer's input with the scale and the zero point of each channel: those of a concat's operands, so that
    these are not rounded again.
    """
    parts = _unscaled(data)
    sizes = [int(static_shape(part.value)[0][1]) for part in parts]
    value = data.value
    if data.parts:
        value = writer.emit(relax.op.concat([part.value for part in parts], axis=1), f"{layer.name}_joined")
    scales = np.repeat([part.scale.scale for part in parts], sizes)
    return value, scales, np.repeat([part.scale.zero_point for part in parts], sizes).astype(np.int64)


def _unscaled(data: Quantized) -> list[Quantized]:
    return [one for part in data.parts for one in _unscaled(part)] if data.parts else [data]


def _shift_of_products(factors: Array) -> int | None:
    """Return the shift of factors whose multipliers have 16 bits, None if one of them is too large."""
    shift = min(15 - int(np.frexp(np.abs(factors).max())[1]), _SHIFTS[-1])
    return shift if shift in _SHIFTS else None


def _bias(layer: Layer, channels: int) -> Array:
    return np.zeros(channels) if layer.bias is None else layer.bias.astype(np.float64)


def _least_scales(layer: Layer, data: Scale) -> Array | None:
    """Return the least weight scales with which the bias fits into the sum."""
    return None if layer.bias is None else np.abs(layer.bias.astype(np.float64)) / data.scale / 2.0**_BIAS_BITS


def _limit(limit: Any, out: Scale) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.clip(np.rint(np.asarray(limit, np.float64) / out.scale) + out.zero_point, -1e9, 1e9))


def _small_shift(factors: list[float]) -> int:
    """Return a shift with which the sum of two scaled 8-bit operands fits into int32."""
    return int(np.clip(_ADD_BITS - np.ceil(np.log2(max(*factors, 1.0))), 1, _ADD_BITS))

"""Quantize to vta_int8: every scale is a power of two, for an accelerator whose ALU only shifts.

Activations and weights are int8 in [-127, 127] per tensor, sums int32. Biases are 8-bit numbers with their own scale,
shifted left to the scale of the sum (or the sum to theirs, if theirs is smaller). Requantization adds half, shifts
right arithmetically, and clips: halves are rounded up. Floats are rounded like C's `round`, halves away from zero.
Source: the `power2` mode of TVM's relay.quantize as VTA used it; the only difference is that the last residual sum is
clipped, too, where the original's cast wrapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from tvm import relax

from tvmflow.ir.relax.emit import Quantized, Writer, constant, convolution, transposed_convolution
from tvmflow.ir.relax.graph import Array
from tvmflow.ir.relax.layers import ADD, AFFINE, CONCAT, CONV, DENSE, MEAN, MOVE, SPLIT, TRANSPOSED, Layer
from tvmflow.ir.relax.scales import Scale, power_of_two, round_half_away
from tvmflow.quantization.int8 import SCALED, emit_clipped, emit_move, window_sums

LIMIT = 127


@dataclass(frozen=True)
class VtaArithmetic:
    """The arithmetic of VTA's GEMM core and ALU: products, sums, shifts, minimum and maximum of integers."""

    rounds_for_all: ClassVar[bool] = False

    def can(
        self, layer: Layer, inputs_are_integer: list[bool], _scales: list[Scale | None], _read_in_float: bool
    ) -> bool:
        if layer.kind in (CONV, TRANSPOSED, DENSE):
            return True
        if layer.kind == ADD:
            return any(inputs_are_integer)
        if layer.kind == AFFINE:
            return all(inputs_are_integer) and _is_plain_activation(layer)
        return layer.kind != SPLIT and all(inputs_are_integer)

    def quantize(self, writer: Writer, name: str, value: Any, scale: Scale) -> Quantized:
        """Emit clip(round(x / scale)); x / scale is exact for a power of two."""
        scaled = writer.emit(relax.op.multiply(value, constant(1.0 / scale.scale, "float32")), f"{name}_scaled_input")
        whole = writer.emit(relax.op.trunc(scaled), f"{name}_whole")
        rest = relax.op.abs(relax.op.subtract(scaled, whole))
        up = relax.op.astype(relax.op.greater_equal(rest, constant(0.5, "float32")), "float32")
        rounded = relax.op.add(whole, relax.op.multiply(up, relax.op.sign(scaled)))
        clipped = relax.op.clip(rounded, float(-LIMIT), float(LIMIT))
        return Quantized(writer.emit(relax.op.astype(clipped, "int8"), f"{name}_q"), scale)

    def layer(self, writer: Writer, layer: Layer, inputs: list[Quantized]) -> Quantized:
        if layer.kind == MOVE:
            return emit_move(writer, layer, inputs[0])
        if layer.kind == MEAN:
            return self._mean(writer, layer, inputs[0])
        if layer.kind == CONCAT:
            return self._concat(writer, layer, inputs)
        out = writer.scales[layer.name]
        if layer.kind == ADD:
            return Quantized(self._add(writer, layer, inputs, out), out)
        if layer.kind == AFFINE:
            value, exponent = _to_int32(inputs[0]), _exponent(inputs[0].scale)
            return Quantized(_requantize(writer, layer, value, exponent, out), out)
        return Quantized(self._gemm(writer, layer, inputs[0], out), out)

    def _gemm(self, writer: Writer, layer: Layer, data: Quantized, out: Scale) -> Any:
        assert layer.weight is not None
        weight_scale = power_of_two(float(np.abs(layer.weight).max(initial=0.0)))
        weight = quantize_power_of_two(layer.weight, weight_scale)
        if layer.kind == CONV:
            total = convolution(layer.step, data.value, constant(weight, "int8"), "int32")
        elif layer.kind == TRANSPOSED:
            total = transposed_convolution(layer.step, data.value, constant(weight, "int8"), "int32")
        else:
            total = relax.op.matmul(data.value, constant(weight, "int8"), out_dtype="int32")
        exponent = _exponent(data.scale) + _exponent(weight_scale)
        if layer.bias is not None and np.any(layer.bias):
            bias_scale = power_of_two(float(np.abs(layer.bias).max()))
            bias = quantize_power_of_two(layer.bias, bias_scale).astype(np.int32)
            lift = _exponent(bias_scale) - exponent
            if lift >= 0:
                bias = bias << min(lift, 23)
            else:
                total = relax.op.left_shift(total, constant(-lift, "int32"))
                exponent += lift
            total = relax.op.add(total, constant(writer.column(layer, bias), "int32"))
        return _requantize(writer, layer, total, exponent, out)

    def _add(self, writer: Writer, layer: Layer, inputs: list[Quantized], out: Scale) -> Any:
        exponent = min(_exponent(operand.scale) for operand in inputs)
        values = []
        for operand in inputs:
            lift = _exponent(operand.scale) - exponent
            values.append(
                _to_int32(operand) if lift == 0 else relax.op.left_shift(_to_int32(operand), constant(lift, "int32"))
            )
        return _requantize(writer, layer, relax.op.add(*values), exponent, out)

    def _concat(self, writer: Writer, layer: Layer, inputs: list[Quantized]) -> Quantized:
        """Shift all parts to the coarsest scale."""
        out = max((operand.scale for operand in inputs), key=lambda scale: scale.scale)
        parts = []
        for index, operand in enumerate(inputs):
            value = operand.value
            if operand.scale != out:
                value = _shift_right(_to_int32(operand), _exponent(out) - _exponent(operand.scale))
                value = writer.emit(
                    relax.op.astype(relax.op.clip(value, -LIMIT, LIMIT), "int8"), f"{layer.name}_part{index}"
                )
            parts.append(value)
        joined = relax.op.concat(parts, axis=int(layer.step.call.attrs.axis))
        return Quantized(writer.emit(joined, f"{layer.name}_q"), out)

    def _mean(self, writer: Writer, layer: Layer, data: Quantized) -> Quantized:
        """Emit an average in int32 whose division truncates: at most one step of the scale is lost."""
        total, divisors, _ = window_sums(writer, layer, data.value)
        mean = relax.op.divide(total, constant(np.asarray(divisors).astype(np.int32), "int32"))
        wide = Scale(data.scale.scale, 0, "int8", -LIMIT, LIMIT)
        return Quantized(writer.emit(relax.op.astype(mean, "int8"), f"{layer.name}_q"), wide)


def _to_int32(operand: Quantized) -> Any:
    return relax.op.astype(operand.value, "int32")


def _exponent(scale: Scale) -> int:
    return int(np.log2(scale.scale))


def quantize_power_of_two(values: Array, scale: Scale) -> Array:
    """Return int8 in [-127, 127] by a power-of-two scale."""
    return np.asarray(np.clip(round_half_away(values.astype(np.float64) / scale.scale), -LIMIT, LIMIT).astype(np.int8))


def _shift_right(value: Any, right: int) -> Any:
    """Return (value + 2^(right - 1)) >> right, or a left shift if `right` is negative."""
    if right > 0:
        return relax.op.right_shift(relax.op.add(value, constant(1 << (right - 1), "int32")), constant(right, "int32"))
    return value if right == 0 else relax.op.left_shift(value, constant(-right, "int32"))


def _requantize(writer: Writer, layer: Layer, value: Any, exponent: int, out: Scale) -> Any:
    """Shift int32 in units of 2^exponent to the output's scale, apply the activation, clip and cast."""
    value = writer.emit(_shift_right(value, _exponent(out) - exponent), layer.name + SCALED)
    with np.errstate(invalid="ignore"):
        low = np.clip(round_half_away(np.asarray(layer.low) / out.scale), -LIMIT, LIMIT).astype(np.int64)
        high = np.clip(round_half_away(np.asarray(layer.high) / out.scale), -LIMIT, LIMIT).astype(np.int64)
    return emit_clipped(writer, layer, value, (low, high), "int32", "int8")


def _is_plain_activation(layer: Layer) -> bool:
    assert layer.weight is not None and layer.bias is not None
    return bool(np.all(layer.weight == 1) and np.all(layer.bias == 0))

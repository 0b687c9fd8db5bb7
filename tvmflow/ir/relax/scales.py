"""Convert ranges to scales, numbers to integers, and factors to fixed-point multipliers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_WHOLE = 1e-4  # most distance of a scaled float32 weight from an integer
_FEW = 256  # weights that are checked first
MAX_SHIFT = 46  # so that |value| * 2^shift fits int64 for values of up to 2^16
_LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}


@dataclass(frozen=True)
class Scale:
    """A quantization: number = scale * (q - zero_point), q in [low, high] of dtype.

    per_channel: additional factors of axis 1, for sums that are not rounded to 8 bits.
    """

    scale: float
    zero_point: int
    dtype: str
    low: int
    high: int
    per_channel: tuple[float, ...] | None = None

    @property
    def factor(self) -> Array:
        """Return the factor of q - zero_point, float32: a number, or (1, C)."""
        if self.per_channel is None:
            return np.asarray(self.scale, np.float32)
        return np.asarray(self.scale * np.asarray(self.per_channel), np.float32)[None]

    def quantize(self, x: Array) -> Array:
        """Return q of float32 x, rounded half to even, exactly as the graph quantizes a float input."""
        scaled = np.rint(x / self.factor) + np.float32(self.zero_point)
        return np.asarray(np.clip(scaled, self.low, self.high).astype(self.dtype))

    def dequantize(self, q: Array) -> Array:
        return np.asarray((q.astype(np.float32) - np.float32(self.zero_point)) * self.factor)

    @property
    def limits(self) -> tuple[float, float]:
        """Return the smallest and the largest representable number."""
        return self.scale * (self.low - self.zero_point), self.scale * (self.high - self.zero_point)


def signed(scale: Scale) -> Scale:
    """Return a uint8 scale as the int8 scale of the same numbers, with integers less 128; an int8 scale unchanged."""
    if scale.dtype != "uint8":
        return scale
    return replace(scale, zero_point=scale.zero_point - 128, dtype="int8", low=scale.low - 128, high=scale.high - 128)


def unsigned(scale: Scale) -> Scale:
    """Return an int8 scale as the uint8 scale of the same numbers, with integers plus 128; a uint8 scale unchanged."""
    if scale.dtype != "int8":
        return scale
    return replace(scale, zero_point=scale.zero_point + 128, dtype="uint8", low=scale.low + 128, high=scale.high + 128)


def asymmetric(low: float, high: float, dtype: str) -> Scale:
    """Return the scale of a range extended to zero, which is represented exactly. dtype: uint8 or int8."""
    low, high = min(low, 0.0), max(high, 0.0)
    q_low, q_high = _LIMITS[dtype]
    if high - low < 1e-30:
        return Scale(1.0, q_low, dtype, q_low, q_high)
    scale = float(np.float32((high - low) / (q_high - q_low)))
    zero = int(np.clip(np.rint(q_low - low / scale), q_low, q_high))
    return Scale(scale, zero, dtype, q_low, q_high)


def power_of_two(largest: float) -> Scale:
    """Return VTA's scale S / 128 with S = 2^ceil(log2(largest)), 1 if all is zero: int8 in [-127, 127]."""
    exponent = math.ceil(math.log2(largest)) if largest > 0 else 0
    return Scale(2.0 ** (exponent - 7), 0, "int8", -127, 127)


def round_half_away(x: Array) -> Array:
    """Round as C's `round`: halves away from zero."""
    whole = np.trunc(x)
    return np.asarray(whole + np.where(np.abs(x - whole) >= 0.5, np.sign(x), 0.0))


def quantize_weight(weight: Array, channel_axis: int | None, least: Array | None = None) -> tuple[Array, Array]:
    """Return int8 weights in [-127, 127] and their scales: (channels,), or (1,) if channel_axis is None.

    least: (channels,), lower bounds of the scales.
    """
    axes = tuple(axis for axis in range(weight.ndim) if axis != channel_axis)
    largest = np.abs(weight).max(axis=axes if channel_axis is not None else None)
    scales = np.atleast_1d(np.where(largest > 0, largest, 127.0) / 127.0).astype(np.float64)
    if least is not None:
        scales = np.maximum(scales, least if channel_axis is not None else least.max())
    column = [1] * weight.ndim
    if channel_axis is not None:
        column[channel_axis] = -1
    q = np.clip(np.rint(weight / scales.reshape(column)), -127, 127).astype(np.int8)
    return q, scales


def find_exact_scales(weight: Array, channel_axis: int) -> tuple[Array, Array] | None:
    """Return int8 weights and scales, (1,) or (channels,), that represent the weights exactly; None if there are none.

    Weights of quantized models thus keep their integers, or multiples of them. A weight of -128 becomes -127, as
    everywhere here.
    """
    scale = _grid_of(weight.reshape(-1))
    scales = np.asarray([scale]) if scale is not None else None
    if scales is None:
        channels = np.moveaxis(weight, channel_axis, 0).reshape(weight.shape[channel_axis], -1)
        found = [_grid_of(channel) for channel in channels]
        if None in found:
            return None
        scales = np.asarray(found, np.float64)
    column = [1] * weight.ndim
    column[channel_axis] = -1
    q = np.rint(weight.astype(np.float64) / scales.reshape(column))
    return np.clip(q, -127, 127).astype(np.int8), scales


def _grid_of(values: Array) -> float | None:
    """Return a scale of which all values are multiples by at most 128, near 127 for the largest; None if
    there is none.
    """
    values = values.astype(np.float64)
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0.0:
        return 1.0
    few = values[:: max(len(values) // _FEW, 1)]
    for count in range(1, 129):
        for some in (few, values):
            exact = some * (count / largest)
            if np.abs(exact - np.rint(exact)).max() > _WHOLE:
                break
        else:
            return largest / (count * max(127 // count, 1))
    return None


def to_fixed_point(factors: Array) -> tuple[Array, int]:
    """Return int64 multipliers below 2^31 and one shift: factor = multiplier * 2^-shift, to 31 bits for the largest.

    All channels share one shift: smaller factors keep fewer bits, which does not affect the rounded result.
    """
    largest = float(np.max(np.abs(factors)))
    shift = MAX_SHIFT if largest == 0 else 30 - math.floor(math.log2(largest))
    shift = int(np.clip(shift, 0, MAX_SHIFT))
    return np.rint(np.asarray(factors, np.float64) * 2.0**shift).astype(np.int64), shift

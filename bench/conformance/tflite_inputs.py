"""Describe the tensors that TFLite operators of conformance tests read."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.conformance.tflite_models import Description, Given

IMAGE = (1, 8, 10, 6)
PLAIN = ("float", "int8", "int16x8")


def float_data(*shape: int, low: float = -2.0, high: float = 2.0, kind: str = "FLOAT32") -> Given:
    return Given(shape, "data", low, high, kind=kind)


def weight_data(*shape: int, axis: int = 0) -> Given:
    return Given(shape, "weight", -1.0, 1.0, axis)


def bias_data(count: int) -> Given:
    return Given((count,), "bias", -1.0, 1.0)


def constant_data(values: Any, kind: str = "INT32") -> Given:
    array = np.asarray(values)
    return Given(array.shape, "plain", kind=kind, values=array)


def integer_data(*shape: int, low: int = -5, high: int = 5, kind: str = "INT32") -> Given:
    return Given(shape, "data", low, high, kind=kind)


def flag_data(*shape: int) -> Given:
    return Given(shape, "data", kind="BOOL")


def of_one(name: str, options: str | None = None, low: float = -2.0, high: float = 2.0, **more: Any) -> Description:
    return Description(name, (float_data(1, 5, 7, 6, low=low, high=high),), options, **more)

"""List the precisions with the functions that convert a float32 module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmflow.config.stage_params import Int8Params, MixedOperators, VtaInt8Params
from tvmflow.quantization.mixed_precision import MixedPrecision, count_low_steps, to_mixed_precision
from tvmflow.quantization.post_training import choose_int8, quantize_alike, quantize_vta
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.progress import Progress

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule


@dataclass(frozen=True)
class PrecisionRequest:
    """options: of the precision; those that it ignores, and None, are allowed for float32 alone."""

    options: Int8Params | VtaInt8Params | MixedOperators | None
    calibration: Samples
    progress: Progress


Convert = Callable[[Any, PrecisionRequest], tuple[Any, dict[str, Any]]]


def _float32(mod: IRModule, _request: PrecisionRequest) -> tuple[Any, dict[str, Any]]:
    return mod, {}


def _mixed(dtype: str, accumulate: str) -> Convert:
    def convert(mod: IRModule, request: PrecisionRequest) -> tuple[Any, dict[str, Any]]:
        assert isinstance(request.options, MixedOperators)
        rules = MixedPrecision(dtype, accumulate, request.options.low, request.options.high)
        converted = to_mixed_precision(mod, rules)
        low, steps = count_low_steps(converted, dtype)
        return converted, {"low_steps": low, "steps": steps}

    return convert


def _int8(mod: IRModule, request: PrecisionRequest) -> tuple[Any, dict[str, Any]]:
    converted, _, report = _all_int8(mod, {}, request)
    return converted, report


def _all_int8(
    mod: IRModule, others: Mapping[str, Any], request: PrecisionRequest
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    options = request.options
    assert isinstance(options, Int8Params)
    chosen, report = choose_int8(mod, request.calibration.inputs, request.calibration.y, options, request.progress)
    alike = {label: quantize_alike(chosen, other, label) for label, other in others.items()}
    return chosen.module, alike, report.to_json()


def _vta_int8(mod: IRModule, request: PrecisionRequest) -> tuple[Any, dict[str, Any]]:
    options = request.options
    assert isinstance(options, VtaInt8Params)
    converted, report = quantize_vta(mod, request.calibration.inputs, request.calibration.y, options, request.progress)
    return converted, report.to_json()


CONVERTERS: dict[str, Convert] = {
    "float32": _float32,
    "float16": _mixed("float16", "float16"),
    "float16_acc32": _mixed("float16", "float32"),
    "bfloat16": _mixed("bfloat16", "float32"),
    "int8": _int8,
    "vta_int8": _vta_int8,
}


def to_precision(mod: IRModule, precision: str, request: PrecisionRequest) -> tuple[Any, dict[str, Any]]:
    """Return the module in a precision and its report."""
    return CONVERTERS[precision](mod, request)


def all_to_precision(
    mod: IRModule, others: Mapping[str, Any], precision: str, request: PrecisionRequest
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the module of the largest bucket, those of smaller ones, and the report of the largest, in a precision.

    All share the scales and weights that are chosen for the largest.
    """
    if precision == "int8":
        return _all_int8(mod, others, request)
    module, report = to_precision(mod, precision, request)
    return module, {label: to_precision(other, precision, request)[0] for label, other in others.items()}, report

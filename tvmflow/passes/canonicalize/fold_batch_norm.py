"""Fold the scale and shift that follow a convolution into its weights and one bias.

FoldBatchNorm handles convolutions and transposed convolutions, and both forms that importers leave: `batch_norm` and
the decomposed `(conv - mean) * scale + shift`. A batch norm without a convolution before it (DenseNet, ResNet v2)
becomes one scale and one shift. numpy computes the weights in float64, so that folding costs no accuracy and no
compilation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.dpl import is_const, is_op, is_tuple_get_item, rewrite_call, wildcard

from tvmflow.ir.tvm_compat import Expr, IRModule, constant_value, type_arguments, type_of

Array = np.ndarray[Any, Any]


def _numpy(matches: Any, pattern: Any) -> Array:
    value: Any = constant_value(matches[pattern])
    return np.asarray(value.numpy(), np.float64)


def _convolution_pattern(data: Any, weight: Any) -> Any:
    return is_op("relax.nn.conv2d")(data, weight) | is_op("relax.nn.conv2d_transpose")(data, weight)


def _matched_call(matches: Any, conv: Any) -> Any:
    """Return the convolution that one of the two alternatives of a pattern matched."""
    return next(matches[part] for part in (conv.left, conv.right) if part in matches)


def _output_channels(conv: Any, weight: Array) -> int:
    """Return the output channels of a convolution; the weights of a transposed one hold those of one group."""
    of_weight = int(weight.shape[conv.attrs.kernel_layout.index("O")])
    return of_weight * int(conv.attrs.groups) if _is_transposed(conv) else of_weight


def _is_transposed(conv: Any) -> bool:
    return bool(conv.op.name == "relax.nn.conv2d_transpose")


def _broadcast_scale(conv: Any, weight: Array, scale: Array) -> Array:
    """Return the scale per output channel in a shape that broadcasts over the weights."""
    axis = conv.attrs.kernel_layout.index("O")
    column = [1] * weight.ndim
    column[axis] = -1
    groups = int(conv.attrs.groups)
    if not _is_transposed(conv) or groups == 1:
        return scale.reshape(column)
    inputs = conv.attrs.kernel_layout.index("I")
    column[inputs] = weight.shape[inputs]
    per_group = np.repeat(scale.reshape(groups, -1), weight.shape[inputs] // groups, axis=0)  # (I, O / groups)
    return (per_group if inputs < axis else per_group.T).reshape(column)


def _fold(conv: Any, data: Any, weight: Array, scale: Array, shift: Array) -> Any:
    """Return conv(data, weight * scale) + shift; scale and shift hold one number per output channel."""
    if _output_channels(conv, weight) != scale.size:
        raise ValueError("a batch norm over another axis than the convolution's channels")
    bias_column = [1] * weight.ndim
    bias_column[conv.attrs.data_layout.index("C")] = -1
    scaled = relax.const((weight * _broadcast_scale(conv, weight, scale)).astype("float32"))
    folded = relax.Call(conv.op, [data, scaled], conv.attrs, type_arguments(conv))
    return relax.op.add(folded, relax.const(shift.reshape(bias_column).astype("float32")))


def _fold_batch_norm(function: Any) -> Any:
    data, weight = wildcard(), is_const()
    gamma, beta, mean, variance = is_const(), is_const(), is_const(), is_const()
    conv = _convolution_pattern(data, weight)
    norm = is_op("relax.nn.batch_norm")(conv, gamma, beta, mean, variance)
    pattern = is_tuple_get_item(norm, 0)

    def fold(_expression: Any, matches: Any) -> Any:
        scale, shift = _scale_and_shift(
            matches[norm].attrs, *(_numpy(matches, p) for p in (gamma, beta, mean, variance))
        )
        return _fold(_matched_call(matches, conv), matches[data], _numpy(matches, weight), scale, shift)

    return rewrite_call(pattern, fold, function)


def _fold_batch_norm_after_bias(function: Any) -> Any:
    """Rewrite batch_norm(conv(x, w) + b) to conv(x, w * scale) + (b * scale + shift)."""
    data, weight, bias = wildcard(), is_const(), is_const()
    gamma, beta, mean, variance = is_const(), is_const(), is_const(), is_const()
    conv = _convolution_pattern(data, weight)
    norm = is_op("relax.nn.batch_norm")(is_op("relax.add")(conv, bias), gamma, beta, mean, variance)
    pattern = is_tuple_get_item(norm, 0)

    def fold(expression: Expr, matches: Any) -> Any:
        scale, shift = _scale_and_shift(
            matches[norm].attrs, *(_numpy(matches, p) for p in (gamma, beta, mean, variance))
        )
        bias_values = _numpy(matches, bias)
        if bias_values.size != scale.size:
            return expression
        return _fold(
            _matched_call(matches, conv),
            matches[data],
            _numpy(matches, weight),
            scale,
            bias_values.reshape(-1) * scale + shift,
        )

    return rewrite_call(pattern, fold, function)


def _scale_and_shift(attrs: Any, gamma: Array, beta: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
    scale = (gamma if attrs.scale else np.ones_like(gamma)) / np.sqrt(variance + float(attrs.epsilon))
    return scale, (beta if attrs.center else 0.0) - mean * scale


def _decompose_batch_norm(function: Any) -> Any:
    """Rewrite batch_norm(x) to x * scale + shift."""
    data = wildcard()
    gamma, beta, mean, variance = is_const(), is_const(), is_const(), is_const()
    norm = is_op("relax.nn.batch_norm")(data, gamma, beta, mean, variance)

    def fold(_expression: Any, matches: Any) -> Any:
        attrs = matches[norm].attrs
        scale, shift = _scale_and_shift(attrs, *(_numpy(matches, p) for p in (gamma, beta, mean, variance)))
        column = [1] * len(type_of(matches[data]).shape)
        column[int(attrs.axis)] = -1
        product = relax.op.multiply(matches[data], relax.const(scale.reshape(column).astype("float32")))
        return relax.op.add(product, relax.const(shift.reshape(column).astype("float32")))

    return rewrite_call(is_tuple_get_item(norm, 0), fold, function)


def _fold_decomposed(function: Any) -> Any:
    """Rewrite (conv(x, w) - c1) * c2 + c3 to conv(x, w * c2) + (c3 - c1 * c2)."""
    data, weight, mean, scale, shift = wildcard(), is_const(), is_const(), is_const(), is_const()
    conv = _convolution_pattern(data, weight)
    pattern = is_op("relax.add")(is_op("relax.multiply")(is_op("relax.subtract")(conv, mean), scale), shift)

    def fold(expression: Expr, matches: Any) -> Any:
        weights, factors = _numpy(matches, weight), _numpy(matches, scale)
        call = _matched_call(matches, conv)
        channels, channel_axis = _output_channels(call, weights), call.attrs.data_layout.index("C")
        for constant in (mean, scale, shift):
            if _numpy(matches, constant).shape != tuple(
                channels if axis == channel_axis else 1 for axis in range(weights.ndim)
            ):
                return expression
        bias = _numpy(matches, shift) - _numpy(matches, mean) * factors
        return _fold(call, matches[data], weights, factors.reshape(-1), bias.reshape(-1))

    return rewrite_call(pattern, fold, function)


@tvm.transform.module_pass(opt_level=0, name="FoldBatchNorm")
class FoldBatchNorm:
    """IRModule -> IRModule with batch norms folded into convolutions; float32, constant weights."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        mod = relax.transform.CanonicalizeBindings()(mod)
        main = mod["main"]
        for rewrite in (_fold_batch_norm, _fold_batch_norm_after_bias, _decompose_batch_norm, _fold_decomposed):
            main = rewrite(main)
        mod.update_func(mod.get_global_var("main"), main)
        return relax.transform.DeadCodeElimination(["main"])(mod)

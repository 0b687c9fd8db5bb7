"""Flatten dense layers over (N, L, C), or more axes, to (N * L, C), together with their biases.

PyTorch exports dense layers in this form; ONNX and Keras keep the axes. With one form, quantization finds all of them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import tvm
from tvm import relax
from tvm.relax.dpl import is_const, is_op, rewrite_call, wildcard

from tvmflow.ir.tvm_compat import Call, IRModule, constant_value, reads_of, shape_of, type_of


@tvm.transform.module_pass(opt_level=0, name="FlattenDense")
class FlattenDense:
    """IRModule -> IRModule. Values of unknown extents are unchanged."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        main = mod["main"]
        for step in (
            partial(_flatten_with_bias, is_bias_first=False),
            partial(_flatten_with_bias, is_bias_first=True),
            _flatten_without_bias,
        ):
            main = step(main)
        mod.update_func(mod.get_global_var("main"), main)
        return relax.transform.DeadCodeElimination(["main"])(mod)


def _flatten_with_bias(function: Any, is_bias_first: bool) -> Any:
    """Flatten each matmul together with the bias that is added to each row.

    is_bias_first: the bias is the first operand.
    """
    data, weight, bias = wildcard(), is_const(), is_const()
    product = is_op("relax.matmul")(data, weight)
    reads = reads_of(function)
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    once = {binding.value for binding in bindings if reads[binding.var] == 1}

    def flattened(call: Call, matches: Any) -> Any:
        made, values = matches[product], constant_value(matches[bias]).numpy()  # type: ignore[union-attr]
        of_columns = values.size in (1, shape_of(made)[-1]) and values.size == (values.shape or (1,))[-1]
        if made not in once or not _is_dense_over_axes(made) or not of_columns or shape_of(call) != shape_of(made):
            return call
        rows = relax.op.add(_flatten_matmul(made), relax.const(values.reshape(-1), str(values.dtype)))
        return relax.op.reshape(rows, shape_of(call))

    return rewrite_call(
        is_op("relax.add")(*((bias, product) if is_bias_first else (product, bias))), flattened, function
    )


def _flatten_without_bias(function: Any) -> Any:
    data, weight = wildcard(), is_const()

    def flattened(call: Call, _matches: Any) -> Any:
        return relax.op.reshape(_flatten_matmul(call), shape_of(call)) if _is_dense_over_axes(call) else call

    return rewrite_call(is_op("relax.matmul")(data, weight), flattened, function)


def _is_dense_over_axes(product: Any) -> bool:
    """Whether a matmul is a dense layer whose input has more than two axes, all of known extent."""
    data, weight = product.args
    shape = type_of(data).shape
    known = shape is not None and all(hasattr(extent, "value") for extent in shape)
    return known and len(shape) > 2 and len(shape_of(weight)) == 2


def _flatten_matmul(product: Any) -> Any:
    data, weight = product.args
    *rows, depth = shape_of(data)
    return relax.op.matmul(relax.op.reshape(data, (math.prod(rows), depth)), weight, product.attrs.out_dtype)

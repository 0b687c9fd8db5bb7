"""FlattenDense: a dense layer over (N, L, C), or more axes, becomes one over rows (N * L, C), its bias with it.

PyTorch exports dense layers so, ONNX and Keras keep the axes. With one form, quantization finds all of them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import tvm
from tvm import relax
from tvm.relax.dpl import is_const, is_op, rewrite_call, wildcard

from tvmflow.ir.tvm_compat import constant_value, reads_of, shape_of, type_of


@tvm.transform.module_pass(opt_level=0, name="FlattenDense")
class FlattenDense:
    """IRModule -> IRModule. Values of unknown extents stay as they are."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        main = mod["main"]
        for step in (partial(_with_bias, behind=False), partial(_with_bias, behind=True), _alone):
            main = step(main)
        mod.update_func(mod.get_global_var("main"), main)
        return relax.transform.DeadCodeElimination(["main"])(mod)


def _with_bias(function: Any, behind: bool) -> Any:
    """Flatten products with what is added to each row. behind: whether the bias comes first."""
    data, weight, bias = wildcard(), is_const(), is_const()
    product = is_op("relax.matmul")(data, weight)
    reads = reads_of(function)
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    once = {binding.value for binding in bindings if reads[binding.var] == 1}

    def flattened(call: Any, matches: Any) -> Any:
        made, values = matches[product], constant_value(matches[bias]).numpy()  # type: ignore[union-attr]
        of_columns = values.size in (1, shape_of(made)[-1]) and values.size == (values.shape or (1,))[-1]
        if made not in once or not _is_over_rows(made) or not of_columns or shape_of(call) != shape_of(made):
            return call
        rows = relax.op.add(_over_rows(made), relax.const(values.reshape(-1), str(values.dtype)))
        return relax.op.reshape(rows, shape_of(call))

    return rewrite_call(is_op("relax.add")(*((bias, product) if behind else (product, bias))), flattened, function)


def _alone(function: Any) -> Any:
    data, weight = wildcard(), is_const()

    def flattened(call: Any, _matches: Any) -> Any:
        return relax.op.reshape(_over_rows(call), shape_of(call)) if _is_over_rows(call) else call

    return rewrite_call(is_op("relax.matmul")(data, weight), flattened, function)


def _is_over_rows(product: Any) -> bool:
    """Whether a product of matrices is a dense layer whose inputs have more axes than two, all of them known."""
    data, weight = product.args
    shape = type_of(data).shape
    known = shape is not None and all(hasattr(extent, "value") for extent in shape)
    return known and len(shape) > 2 and len(shape_of(weight)) == 2


def _over_rows(product: Any) -> Any:
    data, weight = product.args
    *rows, depth = shape_of(data)
    return relax.op.matmul(relax.op.reshape(data, (math.prod(rows), depth)), weight, product.attrs.out_dtype)

"""Fold operators on constants with numpy.

TVM's own FoldConstant compiles every folded operator with LLVM, which costs seconds per network and starts threads that
the caller does not control. The few operators that importers leave on weights are in a table here. The numpy
interpreter evaluates all other steps that depend on constants only (for example the matmul of position embeddings and
weights), since later passes require every step to read a value of the network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmflow.ir.relax.emit import build_main, constant, rebuild_call
from tvmflow.ir.relax.graph import Graph, Step, read_graph
from tvmflow.ir.relax.numpy_interpreter import run_step, value_of
from tvmflow.ir.tvm_compat import Call, IRModule, constant_value, type_of
from tvmflow.support.errors import TvmflowError

Array = np.ndarray[Any, Any]


def _permute_dims(args: list[Array], attrs: Any) -> Array:
    return np.transpose(args[0], None if attrs.axes is None else [int(a) for a in attrs.axes])


def _dequantize(args: list[Array], attrs: Any) -> Array:
    values, scale, zero = args
    column = [1] * values.ndim
    if max(scale.size, zero.size) > 1:
        column[int(attrs.axis)] = -1
    shifted = values.astype(np.int32) - zero.astype(np.int32).reshape(column if zero.size > 1 else [])
    return np.asarray(shifted.astype(np.float32) * scale.reshape(column if scale.size > 1 else []))


_FOLDERS: dict[str, Callable[[list[Array], Any], Array]] = {
    "relax.dequantize": _dequantize,
    "relax.add": lambda a, _: a[0] + a[1],
    "relax.subtract": lambda a, _: a[0] - a[1],
    "relax.multiply": lambda a, _: a[0] * a[1],
    "relax.divide": lambda a, _: a[0] / a[1],
    "relax.negative": lambda a, _: -a[0],
    "relax.sqrt": lambda a, _: np.sqrt(a[0]),
    "relax.rsqrt": lambda a, _: np.asarray(1.0 / np.sqrt(a[0].astype(np.float64)), a[0].dtype),
    "relax.permute_dims": _permute_dims,
    "relax.expand_dims": lambda a, attrs: np.expand_dims(a[0], tuple(int(x) for x in attrs.axis)),
    "relax.squeeze": lambda a, attrs: np.squeeze(
        a[0], None if attrs.axis is None else tuple(int(x) for x in attrs.axis)
    ),
    "relax.take": lambda a, attrs: np.take(
        a[0],
        a[1],
        None if attrs.axis is None else int(attrs.axis),
        mode="wrap" if str(attrs.mode) == "wrap" else "clip",
    ),
    "relax.less": lambda a, _: np.less(a[0], a[1]),
    "relax.where": lambda a, _: np.where(a[0], a[1], a[2]),
    "relax.astype": lambda a, attrs: a[0].astype(str(attrs.dtype)),
}


@mutator
class _Folder(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if name == "relax.reshape":
            return self._reshape(call)
        if name == "relax.shape_to_tensor":
            return self._shape(call)
        if name not in _FOLDERS:
            return call
        values = [self._value(arg) for arg in call.args]
        if any(value is None for value in values):
            return call
        folded = _FOLDERS[name]([value for value in values if value is not None], call.attrs)
        return constant(folded, str(folded.dtype))  # scalars stay 0-D: a 1-D index would change the rank of a gather

    def _reshape(self, call: Call) -> Any:
        value, shape = self._value(call.args[0]), call.args[1]
        dims = getattr(shape, "values", None)
        if value is None or dims is None or not all(hasattr(d, "value") for d in dims):
            return call
        return constant(value.reshape([int(d.value) for d in dims]), str(value.dtype))

    def _shape(self, call: Call) -> Any:
        """Replace a shape by its extents: exporters compute with shapes."""
        sizes = getattr(type_of(call.args[0]), "values", None)
        if sizes is None or not all(hasattr(size, "value") for size in sizes):
            return call
        return relax.const(np.asarray([int(size.value) for size in sizes], np.int64), "int64")

    def _value(self, argument: Any) -> Array | None:
        if isinstance(argument, relax.Var):
            argument = self.lookup_binding(argument)
            if argument is None:
                return None
        tensor = constant_value(argument)
        return tensor.numpy() if tensor is not None and hasattr(tensor, "numpy") else None


@tvm.transform.module_pass(opt_level=0, name="FoldConstants")
class FoldConstants:
    """IRModule -> IRModule with arithmetic on constants evaluated."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        for variable, function in list(mod.functions.items()):
            if isinstance(function, relax.Function):
                mod = tvm.IRModule(
                    {**dict(mod.functions.items()), variable: _Folder(mod).visit_expr(function)}, attrs=mod.attrs
                )
        mod = relax.transform.CanonicalizeBindings()(mod)
        return _evaluate_constant_steps(relax.transform.DeadCodeElimination(["main"])(mod))


def _evaluate_constant_steps(mod: IRModule) -> Any:
    """Replace steps that read constants only by their values; unchanged if every step reads an input."""
    graph = read_graph(mod)
    if all(step.refs or step.op == "constant" for step in graph.steps):
        return mod
    known: dict[str, Any] = {}
    rest = [step for step in graph.steps if not _evaluate(step, known)]
    return _remove_known_steps(graph, known, rest)


def _evaluate(step: Step, known: dict[str, Any]) -> bool:
    """Add the value of a step to `known` if the interpreter can evaluate it; return whether it did."""
    if not all(name in known for name in step.refs):
        return False
    try:
        known[step.name] = run_step(step, [value_of(argument, known) for argument in step.args])
    except (TvmflowError, RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return False  # the interpreter lacks the operator: TVM compiles it
    return True


def _remove_known_steps(graph: Graph, known: dict[str, Any], rest: list[Step]) -> Any:
    """Return the module of the remaining steps, with the known values as constants."""
    builder, kinds = relax.BlockBuilder(), graph.kinds()
    values: dict[str, Any] = {}

    def value_at(name: str) -> Any:
        if name not in values:
            values[name] = constant(known[name], kinds[name].dtype)
        return values[name]

    def body(parameters: dict[str, Any]) -> list[Any]:
        values.update(parameters)
        for step in rest:
            values[step.name] = builder.emit(rebuild_call(step, value_at), step.name)
        return [value_at(name) for name in graph.outputs]

    return build_main(builder, graph, body)

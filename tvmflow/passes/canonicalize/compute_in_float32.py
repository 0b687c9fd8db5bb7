"""Compute networks of float16, bfloat16 or float64 files in float32, as ONNX Runtime does for 16 bits on CPUs.

A file says how its weights are stored, the cell's precision how the network computes: `quantize` narrows it again for
float16 and bfloat16. Kernels of float16 would sum in float16: 8,192 terms lose 3 % of the sum; for float64 there are no
schedules, nor some of TVM's operators. Inputs and outputs keep their dtypes. Kernels that an importer made keep theirs
too, between casts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmflow.ir.relax.emit import build_main, constant, rebuild_call
from tvmflow.ir.relax.graph import Argument, Graph, Ref, Step, read_graph
from tvmflow.ir.tvm_compat import IRModule, type_arguments, type_of

_OTHERS = ("float16", "bfloat16", "float64")
_COMPUTED = "float32"
_DTYPE_FIELDS = ("dtype", "out_dtype")
_ASTYPE = "relax.astype"


@tvm.transform.module_pass(opt_level=0, name="ComputeInFloat32")
class ComputeInFloat32:
    """IRModule -> IRModule; unchanged if no value is of other floats."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        graph = read_graph(mod)
        if not any(kind.dtype in _OTHERS for kind in graph.kinds().values()):
            return mod
        return _Conversion(graph).rewrite()


class _Conversion:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.kinds = graph, graph.kinds()
        self.builder = relax.BlockBuilder()
        self.values: dict[str, Any] = {}

    def rewrite(self) -> Any:
        return build_main(self.builder, self.graph, self._emit_body)

    def _emit_body(self, parameters: dict[str, Any]) -> list[Any]:
        for name, parameter in parameters.items():
            self.values[name] = self._cast(parameter, _COMPUTED) if self.kinds[name].dtype in _OTHERS else parameter
        for step in self.graph.steps:
            self.values[step.name] = self._rewrite_step(step)
        return [self._cast(self.values[name], self.kinds[name].dtype) for name in self.graph.outputs]

    def _rewrite_step(self, step: Step) -> Any:
        if step.kernel is not None:
            made = self.builder.emit(rebuild_call(step, self._as_stored), step.name)
            return self._cast(made, _COMPUTED) if step.dtype in _OTHERS else made
        if step.op == "constant":
            return self.builder.emit(constant(np.asarray(step.args[0]), _converted(step.dtype)), step.name)
        if step.op == _ASTYPE and step.dtype in _OTHERS and isinstance(step.args[0], Ref):
            return self._cast(self.values[step.args[0].name], _COMPUTED)
        return self.builder.emit(rebuild_call(_convert_step(step), self.values.__getitem__), step.name)

    def _as_stored(self, name: str) -> Any:
        """Return a value in the dtype that it has in the graph."""
        return self._cast(self.values[name], self.kinds[name].dtype)

    def _cast(self, value: Any, dtype: str) -> Any:
        if dtype == "tuple" or str(type_of(value).dtype) == dtype:
            return value
        return self.builder.emit(relax.op.astype(value, dtype))


def _converted(dtype: str) -> str:
    return _COMPUTED if dtype in _OTHERS else dtype


def _convert_step(step: Step) -> Step:
    """Return a step with constants and attributes of float32 in place of other floats."""
    call = step.call
    attrs = getattr(call, "attrs", None)
    if attrs is not None and any(str(getattr(attrs, field, "")) in _OTHERS for field in _DTYPE_FIELDS):
        call = relax.Call(call.op, call.args, _convert_attributes(attrs), type_arguments(call))
    return replace(step, args=tuple(map(_convert_argument, step.args)), call=call)


def _convert_attributes(attrs: Any) -> Any:
    info = type(attrs).__tvm_ffi_type_info__
    fields = {field.name: getattr(attrs, field.name) for field in info.fields}
    fields |= {name: _COMPUTED for name in _DTYPE_FIELDS if str(fields.get(name, "")) in _OTHERS}
    return tvm.ir.make_node(info.type_key, **fields)


def _convert_argument(argument: Argument) -> Argument:
    if isinstance(argument, tuple):
        return tuple(map(_convert_argument, argument))
    other = isinstance(argument, np.ndarray) and str(argument.dtype) in _OTHERS
    return np.asarray(argument).astype(_COMPUTED) if other else argument

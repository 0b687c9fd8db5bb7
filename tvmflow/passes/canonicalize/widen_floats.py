"""Compute networks of float16 or bfloat16 files in float32, as ONNX Runtime does on CPUs.

A file says how its weights are stored, the cell's precision how the network computes: `quantize` narrows it again for
float16 and bfloat16. Kernels of float16 would sum in float16: 8,192 terms lose 3 % of the sum. Inputs and outputs keep
their dtypes. Kernels that an importer made keep theirs too, between casts.
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

_NARROW = ("float16", "bfloat16")
_WIDE = "float32"
_DTYPE_FIELDS = ("dtype", "out_dtype")
_ASTYPE = "relax.astype"


@tvm.transform.module_pass(opt_level=0, name="WidenFloats")
class WidenFloats:
    """IRModule -> IRModule; unchanged if no value is of 16-bit floats."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        graph = read_graph(mod)
        if not any(kind.dtype in _NARROW for kind in graph.kinds().values()):
            return mod
        return _Widening(graph).rewrite()


class _Widening:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.kinds = graph, graph.kinds()
        self.builder = relax.BlockBuilder()
        self.values: dict[str, Any] = {}

    def rewrite(self) -> Any:
        return build_main(self.builder, self.graph, self._emit_body)

    def _emit_body(self, parameters: dict[str, Any]) -> list[Any]:
        for name, parameter in parameters.items():
            self.values[name] = self._cast(parameter, _WIDE) if self.kinds[name].dtype in _NARROW else parameter
        for step in self.graph.steps:
            self.values[step.name] = self._rewrite_step(step)
        return [self._cast(self.values[name], self.kinds[name].dtype) for name in self.graph.outputs]

    def _rewrite_step(self, step: Step) -> Any:
        if step.kernel is not None:
            made = self.builder.emit(rebuild_call(step, self._as_stored), step.name)
            return self._cast(made, _WIDE) if step.dtype in _NARROW else made
        if step.op == "constant":
            return self.builder.emit(constant(np.asarray(step.args[0]), _widened(step.dtype)), step.name)
        if step.op == _ASTYPE and step.dtype in _NARROW and isinstance(step.args[0], Ref):
            return self._cast(self.values[step.args[0].name], _WIDE)
        return self.builder.emit(rebuild_call(_widen_step(step), self.values.__getitem__), step.name)

    def _as_stored(self, name: str) -> Any:
        """Return a value in the dtype that it has in the graph."""
        return self._cast(self.values[name], self.kinds[name].dtype)

    def _cast(self, value: Any, dtype: str) -> Any:
        if dtype == "tuple" or str(type_of(value).dtype) == dtype:
            return value
        return self.builder.emit(relax.op.astype(value, dtype))


def _widened(dtype: str) -> str:
    return _WIDE if dtype in _NARROW else dtype


def _widen_step(step: Step) -> Step:
    """Return a step with constants and attributes of float32 in place of 16-bit floats."""
    call = step.call
    attrs = getattr(call, "attrs", None)
    if attrs is not None and any(str(getattr(attrs, field, "")) in _NARROW for field in _DTYPE_FIELDS):
        call = relax.Call(call.op, call.args, _widen_attributes(attrs), type_arguments(call))
    return replace(step, args=tuple(map(_widen_argument, step.args)), call=call)


def _widen_attributes(attrs: Any) -> Any:
    info = type(attrs).__tvm_ffi_type_info__
    fields = {field.name: getattr(attrs, field.name) for field in info.fields}
    fields |= {name: _WIDE for name in _DTYPE_FIELDS if str(fields.get(name, "")) in _NARROW}
    return tvm.ir.make_node(info.type_key, **fields)


def _widen_argument(argument: Argument) -> Argument:
    if isinstance(argument, tuple):
        return tuple(map(_widen_argument, argument))
    narrow = isinstance(argument, np.ndarray) and str(argument.dtype) in _NARROW
    return np.asarray(argument).astype(_WIDE) if narrow else argument

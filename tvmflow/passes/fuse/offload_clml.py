"""Turn each layer that CLML computes into one kernel, which no schedule or code generator touches.

The kernel's TensorIR says what the layer computes: the CPU can run it, as the comparison with the device does. The
attribute OFFLOADED says it to the host code (tvmflow/gpu_codegen/clml_operators.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvmflow.gpu_codegen.clml import ClmlLayer, find_clml_layers
from tvmflow.ir.relax.emit import build_main, constant, rebuild_call
from tvmflow.ir.relax.graph import Argument, Graph, Ref, read_graph
from tvmflow.ir.tir.workloads import OFFLOADED
from tvmflow.ir.tvm_compat import IRModule

_LAYERS = "clml"  # attribute of the module: name of a kernel -> its operator, until the kernel has it


@tvm.transform.module_pass(opt_level=0, name="OffloadClml")
class OffloadClml:
    """IRModule of operators -> IRModule in which main calls a function for each layer."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        graph = read_graph(mod)
        layers = {layer.steps[-1].name: layer for layer in find_clml_layers(graph)}
        inner = {step.name for layer in layers.values() for step in layer.steps[:-1]}
        builder, operators = relax.BlockBuilder(), {}
        functions = {}
        for at, (name, layer) in enumerate(layers.items()):
            functions[name] = _add_function(builder, f"clml{at}_{layer.kind.replace(' ', '_')}", layer, graph)
            operators[functions[name][0].name_hint] = layer.operator.to_json()

        def body(parameters: dict[str, Any]) -> list[Any]:
            values = dict(parameters)
            for step in graph.steps:
                if step.name in functions:
                    function, given = functions[step.name]
                    call = relax.Call(function, [values[one] if isinstance(one, str) else one for one in given])
                    values[step.name] = builder.emit(call, step.name)
                elif step.name not in inner:
                    values[step.name] = builder.emit(rebuild_call(step, values.__getitem__), step.name)
            return [values[name] for name in graph.outputs]

        return build_main(builder, graph, body).with_attr(_LAYERS, operators)


def _add_function(builder: Any, name: str, layer: ClmlLayer, graph: Graph) -> tuple[Any, list[Any]]:
    """Add the function of a layer; return its variable, and its arguments: names of values, then constants."""
    own = {step.name for step in layer.steps}
    outer = list(dict.fromkeys(one for step in layer.steps for one in step.refs if one not in own))
    kinds = {one: graph.kind(one) for one in outer}
    parameters = {
        one: relax.Var(f"p{at}", relax.TensorType(k.shape, k.dtype)) for at, (one, k) in enumerate(kinds.items())
    }
    constants: list[Any] = []

    def lifted(argument: Argument) -> Argument:
        if not isinstance(argument, np.ndarray):
            return argument
        key = f"constant {len(constants)}"
        constants.append(constant(argument, str(argument.dtype)))
        kind = relax.TensorType(argument.shape, str(argument.dtype))
        parameters[key] = relax.Var(f"c{len(constants)}", kind)
        return Ref(key)

    steps = [replace(step, args=tuple(lifted(one) for one in step.args)) for step in layer.steps]
    values: dict[str, Any] = dict(parameters)
    with builder.function(name, list(parameters.values()), attrs={"Primitive": 1}, private=True):
        with builder.dataflow():
            for step in steps[:-1]:
                values[step.name] = builder.emit(rebuild_call(step, values.__getitem__), step.name)
            output = builder.emit_output(rebuild_call(steps[-1], values.__getitem__), "output")
        variable = builder.emit_func_output(output)  # of an earlier function where that is equal
    return variable, [*outer, *constants]


@tvm.transform.module_pass(opt_level=0, name="MarkOffloaded")
class MarkOffloaded:
    """IRModule of kernels -> IRModule whose offloaded kernels have the attribute OFFLOADED."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        operators = dict(mod.attrs[_LAYERS]) if mod.attrs and _LAYERS in mod.attrs else {}
        functions = {
            variable: function.with_attr(OFFLOADED, operators[variable.name_hint])
            if isinstance(function, tirx.PrimFunc) and variable.name_hint in operators
            else function
            for variable, function in mod.functions.items()
        }
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

"""Run one step of a graph that has no definition in numpy, with a library made of it alone."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from tvmflow.ir.graph import Array, Step
from tvmflow.ir.tvm_names import type_arguments

_MAX_LIBRARIES = 256
_libraries: OrderedDict[tuple[Any, ...], tuple[Step, Any]] = OrderedDict()


def run_compiled(step: Step, arguments: list[Any]) -> Any:
    """Compute a step with TVM; the library is kept for the next time. Returns an array, or a tuple of them."""
    import tvm
    from tvm import relax

    tensors: list[Array] = []
    variables: list[Any] = []

    def place(argument: Any) -> Any:
        if isinstance(argument, np.ndarray):
            tensors.append(np.array(argument, order="C"))
            variables.append(relax.Var(f"a{len(tensors)}", relax.TensorType(argument.shape, str(argument.dtype))))
            return variables[-1]
        if isinstance(argument, tuple):
            return relax.Tuple([place(item) for item in argument])
        return argument.expression

    call = relax.Call(
        step.call.op, [place(argument) for argument in arguments], step.call.attrs, type_arguments(step.call)
    )
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(call))
        builder.emit_func_output(output)
    key = (id(step), *(tensor.shape for tensor in tensors))
    if key not in _libraries:
        machine = relax.VirtualMachine(tvm.compile(builder.get(), tvm.target.Target("llvm")), tvm.cpu())
        _libraries[key] = (step, machine)  # with its step, whose id must not be taken by another
        if len(_libraries) > _MAX_LIBRARIES:
            _libraries.popitem(last=False)
    output = _libraries[key][1]["main"](*(tvm.runtime.tensor(t) for t in tensors))
    return np.asarray(output.numpy()) if hasattr(output, "numpy") else tuple(np.asarray(t.numpy()) for t in output)

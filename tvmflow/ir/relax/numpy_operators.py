"""Run operators without a numpy implementation: TVM compiles a library for each step."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from tvmflow.ir.relax.graph import Array, Graph, Step
from tvmflow.ir.tvm_compat import type_arguments

_MAX_LIBRARIES = 256
_lock = threading.Lock()  # a virtual machine of TVM is not thread-safe
_of_step: OrderedDict[tuple[Any, ...], tuple[Step, Any]] = OrderedDict()


def run_compiled(step: Step, arguments: list[Any]) -> Any:
    """Compute a step with TVM and cache its library. Return an array or a tuple of them."""
    with _lock:
        return _run(step, arguments)


def _run(step: Step, arguments: list[Any]) -> Any:
    import tvm

    tensors = list(_arrays(arguments))
    key = (id(step), *((tensor.shape, str(tensor.dtype)) for tensor in tensors))
    if key not in _of_step:
        machine = _machine(str(tvm.ir.save_json(_module(step, arguments))))
        _of_step[key] = (step, machine)  # the step is kept so that its id stays unique
        if len(_of_step) > _MAX_LIBRARIES:
            _of_step.popitem(last=False)
    output = _of_step[key][1]["main"](*(tvm.runtime.tensor(np.array(tensor, order="C")) for tensor in tensors))
    return np.asarray(output.numpy()) if hasattr(output, "numpy") else tuple(np.asarray(t.numpy()) for t in output)


def _arrays(argument: Any) -> Iterator[Array]:
    """Yield the arrays among arguments, in order."""
    if isinstance(argument, np.ndarray):
        yield argument
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from _arrays(item)


def _module(step: Step, arguments: list[Any]) -> Any:
    """Return a module whose main computes the step with a parameter for each array."""
    import tvm
    from tvm import relax

    variables: list[Any] = []

    def place(argument: Any) -> Any:
        if isinstance(argument, np.ndarray):
            kind = relax.TensorType(argument.shape, str(argument.dtype))
            variables.append(relax.Var(f"a{len(variables)}", kind))
            return variables[-1]
        if isinstance(argument, list | tuple):
            return relax.Tuple([place(item) for item in argument])
        return argument.expression

    placed = [place(argument) for argument in arguments]
    call = relax.Call(step.call.op, placed, step.call.attrs, type_arguments(step.call))
    builder = relax.BlockBuilder(tvm.IRModule(Graph({}, [step]).kernels()))
    with builder.function("main", variables):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(call))
        builder.emit_func_output(output)
    return builder.get()


@lru_cache(maxsize=_MAX_LIBRARIES)
def _machine(module: str) -> Any:
    """Return the virtual machine of a module in JSON.

    The key is the JSON, since the quantizer creates new graphs with equal steps for each trial.
    """
    import tvm
    from tvm import relax

    return relax.VirtualMachine(tvm.compile(tvm.ir.load_json(module), tvm.target.Target("llvm")), tvm.cpu())

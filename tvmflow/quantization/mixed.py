"""Mixed precision by a list of operators: which compute in 16 bits, which stay in float32, the rest follows its inputs.

float16 sums in float16; float16_acc32 and bfloat16 sum products in float32 and round once. Input and output of the network
stay float32. Weights are rounded here, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmflow.building.ir_files import numpy_dtype
from tvmflow.quantization.emit import call_again, constant
from tvmflow.quantization.graph import Argument, Graph, Ref, Step, read_graph

_PRODUCTS = ("relax.nn.conv2d", "relax.matmul", "relax.nn.conv2d_transpose", "relax.nn.conv1d", "relax.nn.conv3d")


@dataclass(frozen=True)
class MixedPrecision:
    """low: operators (conv2d, matmul, ...) that compute in dtype. high: those that need float32. accumulate: of products."""

    dtype: str
    accumulate: str
    low: tuple[str, ...]
    high: tuple[str, ...]


def to_mixed(mod: Any, rules: MixedPrecision) -> Any:
    """Return the module with the operators of the list in 16 bits. mod: float32, weights constant."""
    return _Mixer(read_graph(mod), rules).module()


def low_steps(mod: Any, dtype: str) -> tuple[int, int]:
    """Return how many steps of a module make values of dtype, and how many there are."""
    steps = read_graph(mod).steps
    return sum(step.dtype == dtype for step in steps), len(steps)


class _Mixer:
    def __init__(self, graph: Graph, rules: MixedPrecision) -> None:
        from tvm import relax

        self.graph, self.rules = graph, rules
        self.builder = relax.BlockBuilder()
        self.high: dict[str, Any] = {}
        self.low: dict[str, Any] = {}

    def module(self) -> Any:
        from tvm import relax

        parameter = relax.Var(self.graph.input_name, relax.TensorType(self.graph.input_shape, self.graph.input_dtype))
        with self.builder.function("main", [parameter]):
            with self.builder.dataflow():
                self.high[self.graph.input_name] = parameter
                for step in self.graph.steps:
                    self._step(step)
                output = self.builder.emit_output(self._as(self.graph.output, "float32"), "answer")
            self.builder.emit_func_output(output)
        return relax.transform.DeadCodeElimination(["main"])(self.builder.get())

    def _step(self, step: Step) -> None:
        low = self._is_low(step)
        form = self.rules.dtype if low else "float32"
        made = self.low if low else self.high
        if step.op == "constant":
            value = constant(np.asarray(step.args[0]), step.dtype)
        elif low and step.op in _PRODUCTS:
            value = self._product(step)
        else:
            value = call_again(self._cast_constants(step, form), lambda name: self._as(name, form))
        made[step.name] = self.builder.emit(value, step.name)

    def _is_low(self, step: Step) -> bool:
        name = step.op.split(".")[-1]
        if step.dtype not in ("float32", "tuple") or step.op == "constant":
            return False
        if name in self.rules.low:
            return True
        if name in self.rules.high or not step.refs:
            return False
        return all(ref in self.low for ref in step.refs)

    def _as(self, name: str, form: str) -> Any:
        """Return a value in float32 or in the low dtype; values that are no floats have one form only."""
        from tvm import relax

        have, other = (self.high, self.low) if form == "float32" else (self.low, self.high)
        if name not in have:
            if self.graph.input_name != name and self.graph.step(name).dtype != "float32":
                return other[name]
            have[name] = self.builder.emit(relax.op.astype(other[name], form), f"{name}_{form}")
        return have[name]

    def _cast_constants(self, step: Step, form: str) -> Step:
        def cast(argument: Argument) -> Argument:
            if isinstance(argument, np.ndarray) and argument.dtype == np.float32:
                return argument.astype(numpy_dtype(form))
            return tuple(cast(item) for item in argument) if isinstance(argument, tuple) else argument

        return Step(step.name, step.op, tuple(cast(a) for a in step.args), step.call, step.shape, step.dtype)

    def _product(self, step: Step) -> Any:
        from tvm import relax

        form, total = self.rules.dtype, self.rules.accumulate
        operands = [
            self._as(a.name, form) if isinstance(a, Ref) else constant(np.asarray(a).astype(numpy_dtype(form)), form)
            for a in step.args
        ]
        if step.op == "relax.matmul":
            value = relax.op.matmul(*operands, out_dtype=total)
        elif step.op == "relax.nn.conv2d":
            attrs = step.call.attrs
            value = relax.op.nn.conv2d(
                *operands, strides=list(attrs.strides), padding=list(attrs.padding), dilation=list(attrs.dilation),
                groups=attrs.groups, data_layout=attrs.data_layout, kernel_layout=attrs.kernel_layout, out_dtype=total,
            )  # fmt: skip
        else:
            value = call_again(self._cast_constants(step, form), lambda name: self._as(name, form))
            return value
        return value if total == form else relax.op.astype(self.builder.emit(value, f"{step.name}_sum"), form)

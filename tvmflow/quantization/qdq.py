"""Import quantized models: remove QuantizeLinear/DequantizeLinear pairs and keep their scales.

The result is a float network whose values are clipped as their integers would be; quantizing it with these scales gives
the original integers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tvmflow.ir.relax.emit import DEQUANTIZE, QUANTIZE
from tvmflow.ir.relax.graph import Argument, Array, Graph, Other, Ref, Step, operators_named
from tvmflow.ir.relax.numpy_interpreter import run_step
from tvmflow.ir.relax.scales import Scale

_MOVES = operators_named("reshape permute_dims squeeze flatten strided_slice")
_ON_INTEGERS = _MOVES | operators_named("clip nn.max_pool2d")
_ROUNDING = {f"relax.{name}" for name in ("add", "divide", "multiply", "round", "sign", "subtract", "trunc")}
_CAN_CLIP = {"relax.nn.conv2d", "relax.matmul", "relax.add"}


def is_quantized(graph: Graph) -> bool:
    """Return whether a graph brings scales of its own."""
    return any(step.op == QUANTIZE for step in graph.steps)


def strip_qdq(graph: Graph) -> tuple[Graph, dict[str, Scale]]:
    """Return the float graph and the scale of each quantized value; the graph itself and no scales without pairs."""
    if not is_quantized(graph):
        return graph, {}
    return _Stripper(graph).rewrite()


class _Stripper:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rewritten = Graph(dict(graph.inputs))
        self.alias: dict[str, Argument] = {}
        self.quantized: dict[str, tuple[Ref, Scale]] = {}
        self.quantizers: dict[str, Step] = {}  # the step that gives the integers of a quantized value
        self.scales: dict[str, Scale] = {}
        self.ops: dict[str, str] = {}
        self.steps: dict[str, Step] = {}
        self.users = graph.users()

    def rewrite(self) -> tuple[Graph, dict[str, Scale]]:
        for step in self.graph.steps:
            self._rewrite_step(step)
        outputs = [self._as_integers(self.alias.get(name, Ref(name))) for name in self.graph.outputs]
        self.rewritten.outputs = tuple(output.name for output in outputs if isinstance(output, Ref))
        assert len(self.rewritten.outputs) == len(outputs)
        return self.rewritten, self.scales

    def _rewrite_step(self, step: Step) -> None:
        args = tuple(self._resolve(argument) for argument in step.args)
        if step.op == QUANTIZE and isinstance(args[0], Ref):
            scale = _scale(args, step)
            if scale is not None:
                self._quantize(step, args[0], scale)
                return
        if step.op == DEQUANTIZE:
            if isinstance(args[0], np.ndarray):
                self.alias[step.name] = _dequantize(args[0], args, step)
                return
            if isinstance(args[0], Ref) and args[0].name in self.quantized:
                self.alias[step.name] = self.quantized[args[0].name][0]
                return
            scale = _scale(args, replace(step, dtype=self._dtype(args[0])))
            if scale is not None:  # of an input, such as a state, or of integers that were computed
                self.scales[step.name] = scale
        if args and isinstance(args[0], Ref) and args[0].name in self.quantized and step.op in _ON_INTEGERS:
            self._move_to_float(step, args)
            return
        if not any(isinstance(a, Ref | tuple) for a in args) and any(isinstance(a, np.ndarray) for a in args):
            self.alias[step.name] = np.asarray(run_step(step, list(args)))  # all arguments are constants now
            return
        self.steps[step.name] = replace(step, args=tuple(map(self._as_integers, args)))
        self.rewritten.steps.append(self.steps[step.name])
        self.ops[step.name] = step.op

    def _quantize(self, step: Step, value: Ref, scale: Scale) -> None:
        value = self._before_rounding(value)
        self._quantize_sources(value, scale)
        if self.ops.get(value.name) in _CAN_CLIP:
            value = self._add_clip(step, value, scale)
        self.scales[value.name] = scale
        self.quantized[step.name], self.quantizers[step.name] = (value, scale), step

    def _as_integers(self, argument: Argument) -> Argument:
        """Return an argument with the integers of quantized values, for outputs and steps that need them."""
        if isinstance(argument, tuple):
            return tuple(map(self._as_integers, argument))
        if not isinstance(argument, Ref) or argument.name not in self.quantized:
            return argument
        value, quantizer = self.quantized[argument.name][0], self.quantizers[argument.name]
        name = f"{argument.name}_integers"
        if name not in self.ops:
            args = (value, *map(self._resolve, quantizer.args[1:]))
            self.rewritten.steps.append(replace(quantizer, name=name, args=args))
            self.ops[name] = QUANTIZE
        return Ref(name)

    def _dtype(self, argument: Argument) -> str:
        return self.graph.kind(argument.name).dtype if isinstance(argument, Ref) else ""

    def _before_rounding(self, value: Ref) -> Ref:
        """Return the mean whose rounding to integers a value is: the integer form of a mean rounds itself."""
        chain: dict[str, str] = {}  # name of each step of the rounding -> its operator
        names, sources = [value.name], set()
        while names:
            name = names.pop()
            step = self.steps.get(name)
            if step is not None and step.op in _ROUNDING:
                chain[name] = step.op
                names += step.refs
            else:
                sources.add(name)
        mean = sources.pop()
        if sources or self.ops.get(mean) != "relax.nn.avg_pool2d" or "relax.trunc" not in chain.values():
            return value
        self.rewritten.steps = [step for step in self.rewritten.steps if step.name not in chain]
        return Ref(mean)

    def _quantize_sources(self, value: Ref, scale: Scale) -> None:
        """Give the value that is moved only, before it is quantized, the same scale."""
        while (step := self.steps.get(value.name)) is not None and step.op in _MOVES and isinstance(step.args[0], Ref):
            value = step.args[0]
            if len(self.users.get(value.name, ())) != 1 or value.name in self.scales:
                return
            self.scales[value.name] = scale

    def _move_to_float(self, step: Step, args: tuple[Argument, ...]) -> None:
        """Apply an operator that only moves or clamps integers to their float values."""
        assert isinstance(args[0], Ref)
        source = args[0].name
        value, scale = self.quantized[source]
        if step.op == "relax.clip":
            low, high = (int(_number(argument)) for argument in args[1:3])
            limited = replace(scale, low=max(scale.low, low), high=min(scale.high, high))
            if limited != scale:
                value = self._add_clip(step, value, limited)
                self.scales[value.name] = scale
        else:
            moved = replace(step, name=f"{step.name}_moved", args=(value, *args[1:]), dtype="float32")
            self.rewritten.steps.append(moved)
            self.ops[moved.name] = moved.op
            value = Ref(moved.name)
            self.scales[value.name] = scale
        self.quantized[step.name] = (value, scale)
        self.quantizers[step.name] = replace(self.quantizers[source], shape=step.shape)

    def _add_clip(self, step: Step, value: Ref, scale: Scale) -> Ref:
        """Add the clip that the integers imply: exporters omit a ReLU that it covers."""
        from tvm import relax

        low, high = scale.limits
        source = relax.Var(value.name, relax.TensorType(step.shape, "float32"))
        call = relax.op.clip(source, low, high)
        clip = Step(
            f"{step.name}_clip",
            "relax.clip",
            (value, Other(call.args[1]), Other(call.args[2])),
            call,
            step.shape,
            "float32",
        )
        self.rewritten.steps.append(clip)
        self.ops[clip.name] = clip.op
        return Ref(clip.name)

    def _resolve(self, argument: Argument) -> Argument:
        if isinstance(argument, Ref):
            return self.alias.get(argument.name, argument)
        if isinstance(argument, tuple):
            return tuple(self._resolve(item) for item in argument)
        return argument


def _number(argument: Argument) -> float:
    expression: Any = argument.expression if isinstance(argument, Other) else argument
    return float(getattr(expression, "value", expression))


def _scale(args: tuple[Argument, ...], step: Step) -> Scale | None:
    """Return the scale of a QuantizeLinear, None if it has one per channel or is computed."""
    factor, zero = args[1], args[2]
    if not isinstance(factor, np.ndarray) or not isinstance(zero, np.ndarray) or factor.size != 1:
        return None
    if step.dtype not in ("uint8", "int8"):
        return None
    limits = np.iinfo(step.dtype)
    return Scale(float(factor.reshape(-1)[0]), int(zero.reshape(-1)[0]), step.dtype, int(limits.min), int(limits.max))


def _dequantize(values: Array, args: tuple[Argument, ...], step: Step) -> Array:
    factor, zero = np.asarray(args[1]), np.asarray(args[2])
    column: list[int] = [1] * values.ndim
    if factor.size > 1:
        column[int(step.call.attrs.axis)] = -1
    else:
        factor, zero = factor.reshape(-1)[:1], zero.reshape(-1)[:1]
    shifted = values.astype(np.float64) - zero.astype(np.float64).reshape(
        column if zero.size > 1 else [1] * values.ndim
    )
    result: Any = shifted * factor.astype(np.float64).reshape(column if factor.size > 1 else [1] * values.ndim)
    return np.asarray(result, np.float32).reshape(values.shape)

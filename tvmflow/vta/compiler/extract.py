"""Extract the operators that VTA can compute from a quantized graph.

Each operator is a chain of integer steps. The graph is the one that `vta_int8` writes: int8 values, an int32 sum, bias,
rounding shift, clip, cast back. All other steps stay on the CPU, and the reason is kept for the report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmflow.ir.relax.graph import Graph, Ref, Step, TensorKind, scalar_of
from tvmflow.support.errors import ProgramError
from tvmflow.vta.compiler.compiler import check_operator
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.region import Conv, MaxPool, Operator, Shape, Sum, Tail

Array = np.ndarray[Any, Any]
MAX_RIGHT = 15


class _NotVta(Exception):
    """The reason why a step cannot be an operator of VTA."""


@dataclass(frozen=True)
class Chain:
    """An operator and the steps that it stands for; its value is that of the last step."""

    operator: Operator
    steps: tuple[Step, ...]


@dataclass
class Extraction:
    """items: operators and CPU steps in order; glue: steps that only operators read; reasons: step -> why it stays on
    the CPU.
    """

    graph: Graph
    items: list[Chain | Step] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    glue: dict[str, Step] = field(default_factory=dict)

    def steps_of(self, items: list[Chain | Step]) -> list[Step]:
        """Return the steps that items stand for, with the glue that they read, in the order of the graph."""
        wanted = {step.name for item in items for step in (item.steps if isinstance(item, Chain) else (item,))}
        for step in reversed(self.graph.steps):
            if step.name in wanted:
                wanted |= {name for name in step.refs if name in self.glue}
        return [step for step in self.graph.steps if step.name in wanted]


def layer_name(value: str) -> str:
    """Return the layer's name of an integer value: `conv3` of `conv3_q`."""
    return value.removesuffix("_q")


def extract(graph: Graph, config: VtaConfig) -> Extraction:
    """Return the operators of a graph that VTA with this configuration can compute, and all other steps."""
    return _Extractor(graph, config).run()


class _Extractor:
    def __init__(self, graph: Graph, config: VtaConfig) -> None:
        self.graph, self.config, self.users = graph, config, graph.users()
        self.steps = {step.name: step for step in graph.steps}
        self.extraction = Extraction(graph)
        self.not_negative: set[str] = set()

    def run(self) -> Extraction:
        operators: dict[str, Chain] = {}
        inner: set[str] = set()
        for step in self.graph.steps:
            if step.name in inner:
                continue
            try:
                chain = self._operator(step)
            except (_NotVta, ProgramError) as error:
                self.extraction.reasons[layer_name(step.name)] = str(error).splitlines()[0]
                continue
            if chain is not None:
                operators[chain.steps[-1].name] = chain
                inner |= {s.name for s in chain.steps}
        self.extraction.glue = {name: self.steps[name] for name in self._glue(inner)}
        for step in self.graph.steps:
            if step.name in operators:
                self.extraction.items.append(operators[step.name])
            elif step.name not in inner and step.name not in self.extraction.glue:
                self.extraction.items.append(step)
        return self.extraction

    def _glue(self, inner: set[str]) -> set[str]:
        """Return widening casts and shifts that operators read through, when nobody else does."""
        glue: set[str] = set()
        for step in reversed(self.graph.steps):
            readers = self.users[step.name]
            widens = step.dtype == "int32" and step.op in ("relax.astype", "relax.left_shift")
            if widens and readers and all(reader.name in inner | glue for reader in readers):
                glue.add(step.name)
        return glue

    def _kind(self, name: str) -> TensorKind | Step:
        return self.graph.inputs[name] if name in self.graph.inputs else self.steps[name]

    def _shape(self, name: str) -> Shape:
        return self._image(self._kind(name).shape)

    def _image(self, shape: tuple[int, ...]) -> Shape:
        if len(shape) not in (2, 4):
            raise _NotVta(f"a value of shape {shape}")
        padded = (*shape, 1, 1) if len(shape) == 2 else shape
        return padded[0], padded[1], padded[2], padded[3]

    def _dtype(self, name: str) -> str:
        return self._kind(name).dtype

    # -- operators --

    def _operator(self, step: Step) -> Chain | None:
        makers: dict[str, Callable[[Step], Chain | None]] = {
            "relax.nn.conv2d": self._conv,
            "relax.nn.conv2d_transpose": self._conv,
            "relax.matmul": self._dense,
            "relax.add": self._sum,
            "relax.nn.max_pool2d": self._pool,
            "relax.astype": self._alone,
        }
        if step.op not in makers:
            return None
        chain = makers[step.op](step)
        if chain is None:
            return None
        operator = chain.operator
        for name in operator.inputs:
            self.extraction.shapes[name] = self._shape(name)
        data = self.extraction.shapes[operator.inputs[0]]
        check_operator(self.config, operator, data)
        self.extraction.shapes[operator.name] = self._image(chain.steps[-1].shape)
        if operator.shape_of(data) != self.extraction.shapes[operator.name]:
            raise _NotVta(f"a shape {self.extraction.shapes[operator.name]} that its attributes do not give")
        low = (
            operator.tail.low
            if not isinstance(operator, MaxPool)
            else (0 if operator.data in self.not_negative else -1)
        )
        if low >= 0:
            self.not_negative.add(operator.name)
        return chain

    def _conv(self, step: Step) -> Chain | None:
        if step.dtype != "int32" or not isinstance(step.args[1], np.ndarray) or not isinstance(step.args[0], Ref):
            return None
        attrs = step.call.attrs
        if str(attrs.data_layout) != "NCHW" or any(int(d) != 1 for d in attrs.dilation):
            raise _NotVta("a dilated convolution, or one that is not NCHW")
        if step.args[1].dtype != np.int8 or self._dtype(step.args[0].name) != "int8":
            raise _NotVta("operands that are not int8")
        tail, steps = self._tail(step)
        strides, padding = [int(s) for s in attrs.strides], [int(p) for p in attrs.padding]
        transposed = step.op == "relax.nn.conv2d_transpose"
        extra = [int(p) for p in attrs.output_padding] if transposed else [0, 0]
        conv = Conv(
            steps[-1].name,
            step.args[0].name,
            step.args[1],
            tail,
            (strides[0], strides[1]),
            (padding[0], padding[1], padding[2], padding[3]),
            int(attrs.groups),
            transposed,
            (extra[0], extra[1]),
        )
        return Chain(conv, (step, *steps))

    def _dense(self, step: Step) -> Chain | None:
        weight = step.args[1]
        if step.dtype != "int32" or not isinstance(weight, np.ndarray) or not isinstance(step.args[0], Ref):
            return None
        if (
            weight.ndim != 2
            or weight.dtype != np.int8
            or len(step.shape) != 2
            or self._dtype(step.args[0].name) != "int8"
        ):
            raise _NotVta("a product that is not (N, K) x (K, M) of int8")
        tail, steps = self._tail(step)
        filters = np.ascontiguousarray(weight.T)[:, :, None, None]
        return Chain(Conv(steps[-1].name, step.args[0].name, filters, tail), (step, *steps))

    def _sum(self, step: Step) -> Chain | None:
        if step.dtype != "int32" or len(step.refs) != 2 or len(set(step.refs)) != 2:
            return None
        operands = [self._operand(name) for name in step.refs]
        if any(operand is None or self._shape(operand[0]) != self._image(step.shape) for operand in operands):
            return None
        tail, steps = self._tail(step)
        if tail.bias is not None or tail.right > MAX_RIGHT:
            raise _NotVta("a sum with a bias or a wide shift")
        names, lefts = zip(*(operand for operand in operands if operand is not None), strict=True)
        return Chain(Sum(steps[-1].name, tuple(names), tuple(lefts), tail), (step, *steps))

    def _operand(self, name: str) -> tuple[str, int] | None:
        """Return (int8 value, left shift) behind a widened value."""
        left, step = 0, self.steps.get(name)
        if step is not None and step.op == "relax.left_shift" and (amount := _number(step)) is not None:
            left, step = amount, self.steps.get(step.refs[0])
        if step is None or step.op != "relax.astype" or step.dtype != "int32" or self._dtype(step.refs[0]) != "int8":
            return None
        return step.refs[0], left

    def _alone(self, step: Step) -> Chain | None:
        """An activation, or a change of scale, of one int8 value: astype, tail."""
        if step.dtype != "int32" or self._dtype(step.refs[0]) != "int8" or len(self.users[step.name]) != 1:
            return None
        reader = self.users[step.name][0]
        if (
            reader.op == "relax.left_shift"
            and len(self.users[reader.name]) == 1
            and self._is_sum(self.users[reader.name][0])
        ):
            return None
        if self._is_sum(reader) or reader.op not in (
            "relax.add",
            "relax.right_shift",
            "relax.left_shift",
            "relax.clip",
        ):
            return None
        tail, steps = self._tail(step)
        if tail.bias is not None or tail.right > MAX_RIGHT:
            raise _NotVta("a change of scale with a bias or a wide shift")
        return Chain(Sum(steps[-1].name, (step.refs[0],), (0,), tail), (step, *steps))

    def _is_sum(self, step: Step) -> bool:
        return step.op == "relax.add" and len(step.refs) == 2

    def _pool(self, step: Step) -> Chain | None:
        if step.dtype != "int8":
            return None
        attrs, name = step.call.attrs, step.refs[0]
        if str(attrs.layout) != "NCHW" or any(int(d) != 1 for d in attrs.dilation) or bool(attrs.ceil_mode):
            raise _NotVta("a pool that is dilated, rounds its size up or is not NCHW")
        pads = [int(p) for p in attrs.padding]
        if any(pads) and name not in self.not_negative:
            raise _NotVta("a padded pool over values that may be negative")
        size, strides = [int(k) for k in attrs.pool_size], [int(s) for s in attrs.strides]
        pool = MaxPool(
            step.name, name, (size[0], size[1]), (strides[0], strides[1]), (pads[0], pads[1], pads[2], pads[3])
        )
        return Chain(pool, (step,))

    # -- tails --

    def _tail(self, anchor: Step) -> tuple[Tail, list[Step]]:
        """Follow the only readers of a sum to the int8 value. Raises _NotVta when they do something else."""
        steps: list[Step] = []
        left = half = right = 0
        bias: Array | None = None
        low, high, step = -128, 127, anchor
        while step.dtype == "int32":
            readers = self.users[step.name]
            if len(readers) != 1 or step.name in self.graph.outputs:
                raise _NotVta("a sum that is read more than once, or before it is int8")
            step = readers[0]
            steps.append(step)
            array = next((a for a in step.args if isinstance(a, np.ndarray)), None)
            if step.op == "relax.left_shift" and (amount := _number(step)) is not None:
                if bias is None and not half and not right:
                    left += amount
                elif not right:
                    right = -amount
                else:
                    raise _NotVta("shifts in both directions")
            elif step.op == "relax.add" and array is not None and not right:
                if array.size == 1:
                    half += int(array.reshape(-1)[0])
                else:
                    bias = self._channels(array, anchor) + (0 if bias is None else bias)
            elif step.op == "relax.right_shift" and (amount := _number(step)) is not None and not right:
                right = amount
            elif step.op == "relax.clip":
                low, high = (int(scalar_of(a)) for a in step.args[1:3])
            elif step.op == "relax.astype" and step.dtype == "int8":
                continue
            else:
                raise _NotVta(f"{step.op.removeprefix('relax.')} behind a sum")
        if (low, high) == (-128, 127) and not any(s.op == "relax.clip" for s in steps):
            return Tail(bias, left, half, right, -128, 127, saturates=False), steps
        return Tail(bias, left, half, right, max(low, -128), min(high, 127)), steps

    def _channels(self, array: Array, anchor: Step) -> Array:
        channels = anchor.shape[1]
        full = (1,) * (len(anchor.shape) - array.ndim) + array.shape
        if array.size != channels or full[1] != channels:
            raise _NotVta(f"a constant of shape {array.shape} behind a sum")
        return np.asarray(array.reshape(-1).astype(np.int32))


def _number(step: Step) -> int | None:
    """Return the constant that a shift shifts by."""
    array = next((a for a in step.args if isinstance(a, np.ndarray)), None)
    return int(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

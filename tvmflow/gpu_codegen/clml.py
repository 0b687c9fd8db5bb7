"""Find the layers of a network that CLML, Qualcomm's library for Adreno, can compute (docs/gpu.md).

The operators are those that TVM offloads to it (src/runtime/extra/contrib/clml): floats, channels first; convolutions
with one group or depthwise, with bias and ReLU or ReLU6, float16 accumulated in float32 on request; pools; additions;
activations; dense layers of one row; softmax of one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tvmflow.gpu_codegen.clml_operators import ClmlKind, ClmlOperator, arithmetic_of
from tvmflow.ir.relax.graph import Graph, Other, Step
from tvmflow.ir.relax.layers import channel_vector

_FLOATS = ("float32", "float16")


@dataclass(frozen=True)
class ClmlLayer:
    """One call of CLML and the operators that it covers, in order; its output is that of the last one."""

    operator: ClmlOperator
    steps: tuple[Step, ...]

    @property
    def kind(self) -> ClmlKind:
        return self.operator.kind


def find_clml_layers(graph: Graph) -> tuple[ClmlLayer, ...]:
    """Return the layers that CLML can compute, in the network's order."""
    users = graph.users()

    def reader(step: Step) -> Step | None:
        """Return the only operator that reads a value, None if there are others."""
        found = users[step.name]
        return found[0] if len(found) == 1 and step.name not in graph.outputs else None

    layers: dict[str, ClmlLayer] = {}
    fused: set[str] = set()
    for step in graph.steps:
        rule = _RULES.get(step.op)
        if rule is None or step.name in fused or not _reads_floats(step, graph):
            continue
        kind = rule(step, graph, layers)
        if kind is None:
            continue
        steps = (step, *_fusable_operators(step, reader))
        dtype = graph.kind(step.refs[0]).dtype
        if steps[-1].dtype != dtype or (kind == "dense" and len(steps) == 1):
            continue
        layers[steps[-1].name] = ClmlLayer(_operator(kind, steps, dtype, graph), steps)
        fused |= {one.name for one in steps}
    return tuple(layers.values())


def describe_clml(graph: Graph) -> str:
    """Return a text with the share of a network that CLML can compute, and the layers of each kind."""
    layers = find_clml_layers(graph)
    kinds = sorted(Counter(layer.kind for layer in layers).items())
    taken = sum(len(layer.steps) for layer in layers)
    named = f" ({', '.join(f'{kind}: {count}' for kind, count in kinds)})" if kinds else ""
    return f"{taken} of {len(graph.steps)} operators{named}"


def _reads_floats(step: Step, graph: Graph) -> bool:
    kinds = [graph.kind(name) for name in step.refs]
    return bool(kinds) and all(len(kind.shape) in (2, 4) and kind.dtype in _FLOATS for kind in kinds)


def _operator(kind: ClmlKind, steps: tuple[Step, ...], dtype: str, graph: Graph) -> ClmlOperator:
    first = steps[0]
    activations = [found for step in steps if (found := _activation_of(step))]
    made = ClmlOperator(kind, activations[0] if activations else "none", arithmetic_of(dtype, first.dtype))
    if kind in ("convolution", "depthwise convolution"):
        attrs = first.call.attrs
        return made.windowed(_pairs(attrs.padding), _pair(attrs.strides), dilation=_pair(attrs.dilation))
    if first.op == "relax.mean":
        height, width = graph.kind(first.refs[0]).shape[2:]
        return made.windowed((0, 0, 0, 0), (1, 1), window=(height, width))
    if kind in ("max pool", "average pool"):
        attrs = first.call.attrs
        return made.windowed(_pairs(attrs.padding), _pair(attrs.strides), window=_pair(attrs.pool_size))
    return made


def _pair(numbers: object) -> tuple[int, int]:
    height, width = (int(one) for one in numbers)  # type: ignore[attr-defined]
    return height, width


def _pairs(padding: object) -> tuple[int, int, int, int]:
    top, left, bottom, right = (int(one) for one in padding)  # type: ignore[attr-defined]
    return top, left, bottom, right


# -- which operators --

Layers = Mapping[str, ClmlLayer]


def _convolution(step: Step, graph: Graph, _layers: Layers) -> ClmlKind | None:
    attrs, weights = step.call.attrs, step.args[1]
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCHW", "OIHW") or not isinstance(weights, np.ndarray):
        return None
    groups = int(attrs.groups)
    if groups == 1:
        return "convolution"
    return "depthwise convolution" if groups == graph.kind(step.refs[0]).shape[1] == step.shape[1] else None


def _pool(step: Step, _graph: Graph, _layers: Layers) -> ClmlKind | None:
    attrs = step.call.attrs
    plain = str(attrs.layout) == "NCHW" and not attrs.ceil_mode and all(int(d) == 1 for d in attrs.dilation)
    if step.op == "relax.nn.max_pool2d":
        return "max pool" if plain else None
    return "average pool" if plain and not any(int(p) for p in attrs.padding) else None


def _global_pool(step: Step, graph: Graph, _layers: Layers) -> ClmlKind | None:
    axes, shape = step.call.attrs.axis, graph.kind(step.refs[0]).shape
    is_pool = len(shape) == 4 and axes is not None and sorted(int(axis) % 4 for axis in axes) == [2, 3]
    return "average pool" if is_pool and (len(step.shape) == 4 or shape[0] == 1) else None


def _addition(step: Step, graph: Graph, _layers: Layers) -> ClmlKind | None:
    is_plain = step.shape[0] == 1 and [graph.kind(name).shape for name in step.refs] == [step.shape] * 2
    return "addition" if is_plain and len(step.shape) == 4 and len(set(step.refs)) == 2 else None


def _behind_a_layer(step: Step, _graph: Graph, layers: Layers) -> ClmlKind | None:
    """An activation costs our kernels nothing, but the way to them and back does."""
    follows = step.refs[0] in layers and len(step.shape) == 4
    return "activation" if follows and _activation_of(step) else None


def _dense(step: Step, graph: Graph, _layers: Layers) -> ClmlKind | None:
    weights, shape = step.args[1], graph.kind(step.refs[0]).shape
    is_row = len(step.refs) == 1 and len(shape) == 2 and shape[0] == 1
    return "dense" if is_row and isinstance(weights, np.ndarray) and weights.ndim == 2 else None


def _softmax(step: Step, _graph: Graph, _layers: Layers) -> ClmlKind | None:
    is_row = len(step.shape) == 2 and step.shape[0] == 1 and int(step.call.attrs.axis) in (-1, 1)
    return "softmax" if is_row else None


_RULES: dict[str, Callable[[Step, Graph, Layers], ClmlKind | None]] = {
    "relax.nn.conv2d": _convolution,
    "relax.nn.max_pool2d": _pool,
    "relax.nn.avg_pool2d": _pool,
    "relax.mean": _global_pool,
    "relax.add": _addition,
    "relax.nn.relu": _behind_a_layer,
    "relax.clip": _behind_a_layer,
    "relax.matmul": _dense,
    "relax.nn.softmax": _softmax,
}


# -- what belongs to one --


def _fusable_operators(step: Step, reader: Callable[[Step], Step | None]) -> Iterator[Step]:
    """Yield the operators that CLML fuses: into a convolution bias, then ReLU or ReLU6, then a cast to its input type;
    into a dense layer its bias and that cast.
    """
    parts: dict[str, tuple[Callable[[Step], bool], ...]] = {
        "relax.nn.conv2d": (_is_bias, lambda one: bool(_activation_of(one)), _is_rounding),
        "relax.matmul": (_is_bias, _is_rounding),
    }
    for is_part in parts.get(step.op, ()):
        behind = reader(step)
        if behind is not None and is_part(behind):
            yield behind
            step = behind


def _is_bias(step: Step) -> bool:
    arrays = [one for one in step.args if isinstance(one, np.ndarray)]
    if step.op != "relax.add" or len(arrays) != 1:
        return False
    if len(step.shape) == 2:
        return arrays[0].shape in ((step.shape[1],), (1, step.shape[1]))
    return channel_vector(arrays[0], step.shape) is not None


def _activation_of(step: Step) -> str:
    if step.op == "relax.clip":
        limits = [float(one.expression.value) for one in step.args if isinstance(one, Other)]
        return "relu6" if limits == [0.0, 6.0] else ""
    return "relu" if step.op == "relax.nn.relu" else ""


def _is_rounding(step: Step) -> bool:
    return step.op == "relax.astype" and step.dtype == "float16"

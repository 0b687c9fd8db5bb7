"""Count the layers of a network that CLML, Qualcomm's library for Adreno, could compute (docs/gpu.md).

There is no host code for CLML; all layers run as our kernels. The operators are those that TVM offloads to it
(src/runtime/extra/contrib/clml): float images, channels first; convolutions with one group or depthwise, with bias and
ReLU or ReLU6, float16 accumulated in float32 on request; pools; additions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tvmflow.ir.relax.graph import Graph, Other, Step
from tvmflow.ir.relax.layers import channel_vector

_FLOATS = ("float32", "float16")


@dataclass(frozen=True)
class ClmlLayer:
    """One call of CLML and the operators that it covers, in order; its output is that of the last one."""

    kind: str
    steps: tuple[Step, ...]


def find_clml_layers(graph: Graph) -> tuple[ClmlLayer, ...]:
    """Return the layers that CLML could compute, in the network's order."""
    users = graph.users()

    def reader(step: Step) -> Step | None:
        """Return the only operator that reads a value, None if there are others."""
        found = users[step.name]
        return found[0] if len(found) == 1 and step.name not in graph.outputs else None

    layers: dict[str, ClmlLayer] = {}
    fused: set[str] = set()
    for step in graph.steps:
        if step.name in fused or not _floats_in_images(step, graph):
            continue
        if rule := _RULES.get(step.op):
            kind = rule(step, graph)
            steps = (step, *_fusable_operators(step, reader)) if step.op == "relax.nn.conv2d" else (step,)
            if kind and steps[-1].dtype == graph.kind(step.refs[0]).dtype:
                layers[step.name] = ClmlLayer(kind, steps)
                fused |= {one.name for one in steps}
    return tuple(layers.values())


def describe_clml(graph: Graph) -> str:
    """Return a text with the share of a network that CLML could compute, and the layers of each kind."""
    layers = find_clml_layers(graph)
    kinds = sorted(Counter(layer.kind for layer in layers).items())
    taken = sum(len(layer.steps) for layer in layers)
    named = f" ({', '.join(f'{kind}: {count}' for kind, count in kinds)})" if kinds else ""
    return f"{taken} of {len(graph.steps)} operators{named}"


def _floats_in_images(step: Step, graph: Graph) -> bool:
    kinds = [graph.kind(name) for name in step.refs]
    return len(step.shape) == 4 and all(len(kind.shape) == 4 and kind.dtype in _FLOATS for kind in kinds)


def _convolution(step: Step, graph: Graph) -> str | None:
    attrs, weights = step.call.attrs, step.args[1]
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCHW", "OIHW") or not isinstance(weights, np.ndarray):
        return None
    groups = int(attrs.groups)
    if groups == 1:
        return "convolution"
    return "depthwise convolution" if groups == graph.kind(step.refs[0]).shape[1] == step.shape[1] else None


def _pool(step: Step, _graph: Graph) -> str | None:
    attrs = step.call.attrs
    plain = str(attrs.layout) == "NCHW" and not attrs.ceil_mode and all(int(d) == 1 for d in attrs.dilation)
    if step.op == "relax.nn.max_pool2d":
        return "max pool" if plain else None
    return "average pool" if plain and not any(int(p) for p in attrs.padding) else None


def _addition(step: Step, graph: Graph) -> str | None:
    is_plain = step.shape[0] == 1 and [graph.kind(name).shape for name in step.refs] == [step.shape] * 2
    return "addition" if is_plain else None


_RULES: dict[str, Callable[[Step, Graph], str | None]] = {
    "relax.nn.conv2d": _convolution,
    "relax.nn.max_pool2d": _pool,
    "relax.nn.avg_pool2d": _pool,
    "relax.add": _addition,
}


def _fusable_operators(step: Step, reader: Callable[[Step], Step | None]) -> Iterator[Step]:
    """Yield the operators that CLML fuses into a convolution: bias, then ReLU or ReLU6, then a cast to
    its input type.
    """
    for is_part in (_is_bias, _is_activation, _is_rounding):
        behind = reader(step)
        if behind is not None and is_part(behind):
            yield behind
            step = behind


def _is_bias(step: Step) -> bool:
    arrays = [one for one in step.args if isinstance(one, np.ndarray)]
    return step.op == "relax.add" and len(arrays) == 1 and channel_vector(arrays[0], step.shape) is not None


def _is_activation(step: Step) -> bool:
    if step.op == "relax.clip":
        return [float(one.expression.value) for one in step.args if isinstance(one, Other)] == [0.0, 6.0]
    return step.op == "relax.nn.relu"


def _is_rounding(step: Step) -> bool:
    return step.op == "relax.astype" and step.dtype == "float16"

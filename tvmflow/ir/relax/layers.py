"""Group the steps of a graph into layers: a convolution, its bias and activation are one.

A layer takes its weight, bias and activation limits out of the graph, so that passes such as equalization can change
them. All other steps stay as they are and are computed in float.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tvmflow.ir.relax.graph import Argument, Array, Graph, Other, Ref, Step, is_concat

CONV, DENSE, ADD, AFFINE, MEAN, CONCAT, MOVE = "conv", "dense", "add", "affine", "mean", "concat", "move"
SPLIT = "split"  # its value is a tuple, whose items are of kind MOVE
GEMM_KINDS = (CONV, DENSE)
TRANSPOSED = "conv_transpose"
_MOVES = {
    "relax.nn.max_pool2d",
    "relax.reshape",
    "relax.permute_dims",
    "relax.flatten",
    "relax.squeeze",
    "relax.expand_dims",
    "relax.strided_slice",
}


@dataclass
class Layer:
    """A unit of quantization. `name` is also the name of its output value.

    inputs: names of values. weight: conv (O, I/groups, KH, KW), transposed (I, O, KH, KW), dense (inputs, outputs),
    affine: the factor per channel. bias: (channels,) or None. low, high: limits of the activation, numbers or
    (channels,) arrays, infinite if there are none. step: the anchor with the attributes.
    """

    name: str
    kind: str
    step: Step
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    weight: Array | None = None
    bias: Array | None = None
    low: Any = -math.inf
    high: Any = math.inf

    @property
    def has_activation(self) -> bool:
        return bool(np.any(np.isfinite(self.low)) or np.any(np.isfinite(self.high)))

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel has its own filter."""
        return (
            self.kind == CONV
            and self.weight is not None
            and self.weight.shape[:2] == (self.groups, 1)
            and self.groups > 1
        )

    @property
    def groups(self) -> int:
        return int(self.step.call.attrs.groups) if self.kind == CONV else 1


@dataclass
class Network:
    """Layers and other steps in order; values are named after layers. names: value of the graph -> its name here."""

    graph: Graph
    items: list[Layer | Step] = field(default_factory=list)
    outputs: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict)

    @property
    def layers(self) -> list[Layer]:
        return [item for item in self.items if isinstance(item, Layer)]

    def copy(self) -> Network:
        """Return a network whose layers can be changed independently."""
        items = [replace(item) if isinstance(item, Layer) else item for item in self.items]
        return replace(self, items=items)

    def layer(self, name: str) -> Layer:
        return next(layer for layer in self.layers if layer.name == name)

    def users(self) -> dict[str, list[Layer | Step]]:
        users: dict[str, list[Layer | Step]] = {name: [] for name in self.graph.inputs}
        for item in self.items:
            users[item.name] = []
        for item in self.items:
            for name in set(item.inputs if isinstance(item, Layer) else item.refs):
                users[name].append(item)
        return users


def joins_unscaled(network: Network, concat: Layer, readers: list[Layer | Step]) -> bool:
    """Whether only layers with a factor per channel read a concat along channels: the factors can include scales."""
    return (
        bool(readers)
        and is_concat(concat.step, axis=1)
        and concat.name not in network.outputs
        and all(isinstance(reader, Layer) and reader.kind == AFFINE for reader in readers)
    )


def group_layers(graph: Graph) -> Network:
    """Return the network of a graph with folded batch norms."""
    return _LayerGrouper(graph).network()


class _LayerGrouper:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.users = graph, graph.users()
        self.names = {name: name for name in graph.inputs}
        self.used: set[str] = set()
        self.splits: set[str] = set()
        self.counts: Counter[str] = Counter()

    def network(self) -> Network:
        network = Network(self.graph)
        for step in self.graph.steps:
            if step.name in self.used:
                continue
            layer = self._layer(step)
            network.items.append(layer if layer is not None else self._keep_step(step))
        network.outputs, network.names = tuple(self.names[name] for name in self.graph.outputs), self.names
        return network

    def _keep_step(self, step: Step) -> Step:
        name = self._new_name(step.op.split(".")[-1] if not step.op.startswith("get_item") else "item")
        self.names[step.name] = name
        return replace(step, name=name, args=tuple(self._rename(a) for a in step.args))

    def _rename(self, argument: Argument) -> Argument:
        if isinstance(argument, Ref):
            return Ref(self.names[argument.name])
        if isinstance(argument, tuple):
            return tuple(self._rename(item) for item in argument)
        return argument

    def _new_name(self, stem: str) -> str:
        name = f"{stem}{self.counts[stem]}"
        self.counts[stem] += 1
        return name

    def _layer(self, step: Step) -> Layer | None:
        kind = self._classify_split(step) or self._classify(step)
        if kind is None:
            return None
        data = self._input_names(step, kind)
        layer = Layer("", kind, step, tuple(self.names[name] for name in data), step.shape)
        last = step
        if kind in (CONV, TRANSPOSED, DENSE):
            layer.weight = np.asarray(step.args[1])
            last = self._take_bias(layer, last)
        elif kind == AFFINE:
            last = self._start_affine(layer, step)
        if kind in (CONV, TRANSPOSED, DENSE, ADD, AFFINE):
            last = self._take_activation(layer, last)
        stem = {MOVE: "item" if is_item(step) else step.op.split(".")[-1]}.get(kind, kind)
        layer.name = self._new_name(stem)
        layer.shape = last.shape
        self.names[last.name] = layer.name
        return layer

    def _input_names(self, step: Step, kind: str) -> tuple[str, ...]:
        if kind == CONCAT:
            return step.refs
        if kind == ADD:
            return step.refs
        return step.refs[:1]

    def _classify_split(self, step: Step) -> str | None:
        """Return the kind of a split that is read part by part, and of a part."""
        if is_item(step):
            return MOVE if step.refs[0] in self.splits else None
        readers = self.users[step.name]
        plain = step.op == "relax.split" and step.name not in self.graph.outputs and all(map(is_item, readers))
        if not plain or any(reader.dtype != "float32" for reader in readers):
            return None
        self.splits.add(step.name)
        return SPLIT

    def _classify(self, step: Step) -> str | None:
        if step.dtype != "float32":
            return None
        weight = step.args[1] if len(step.args) > 1 else None
        if step.op == "relax.nn.conv2d":
            attrs = step.call.attrs
            plain = str(attrs.data_layout) == "NCHW" and str(attrs.kernel_layout) == "OIHW"
            return CONV if plain and isinstance(weight, np.ndarray) else None
        if step.op == "relax.nn.conv2d_transpose":
            return TRANSPOSED if is_plain_transposed(step.call.attrs) and isinstance(weight, np.ndarray) else None
        if step.op == "relax.matmul":
            return DENSE if isinstance(weight, np.ndarray) and weight.ndim == 2 and len(step.shape) == 2 else None
        if step.op == "relax.add" and self._adds_values(step):
            return ADD
        if step.op in ("relax.multiply", "relax.add", "relax.nn.relu", "relax.clip"):
            return AFFINE if self._channel_vector(step) is not None and len(step.shape) in (2, 4) else None
        if step.op in ("relax.mean", "relax.nn.avg_pool2d"):
            return MEAN if self._is_spatial_mean(step) else None
        if step.op == "relax.concat":
            return CONCAT if is_concat(step) else None
        return MOVE if (step.op in _MOVES or _repeats_pixels(step)) and len(step.refs) == 1 else None

    def _adds_values(self, step: Step) -> bool:
        if not all(isinstance(a, Ref) for a in step.args) or len(step.shape) < 2:
            return False
        return all(self._shape(a.name) == step.shape for a in step.args)  # type: ignore[union-attr]

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.graph.kind(name).shape

    def _is_spatial_mean(self, step: Step) -> bool:
        source = self._shape(step.refs[0])
        if len(source) != 4:
            return False
        attrs = step.call.attrs
        if step.op == "relax.mean":
            return sorted(int(a) % 4 for a in attrs.axis or ()) == [2, 3]
        return str(attrs.layout) == "NCHW" and all(int(d) == 1 for d in attrs.dilation)

    def _channel_vector(self, step: Step) -> Array | None:
        """Return the per-channel constant of `x op constant`, None if the constant has another shape."""
        channels = step.shape[1] if len(step.shape) > 1 else 0
        if step.op in ("relax.nn.relu", "relax.clip"):
            return np.zeros(channels, np.float32)
        constants = [a for a in step.args if isinstance(a, np.ndarray)]
        if len(constants) != 1 or len(step.refs) != 1 or self._shape(step.refs[0]) != step.shape:
            return None
        return channel_vector(constants[0], step.shape)

    def _sole_user(self, step: Step) -> Step | None:
        users = self.users[step.name]
        return users[0] if len(users) == 1 and step.name not in self.graph.outputs else None

    def _take_bias(self, layer: Layer, last: Step) -> Step:
        user = self._sole_user(last)
        if user is None or user.op != "relax.add" or user.shape != last.shape:
            return last
        vector = self._channel_vector(user)
        if vector is None:
            return last
        layer.bias = vector.astype(np.float32)
        self.used.add(user.name)
        return user

    def _start_affine(self, layer: Layer, step: Step) -> Step:
        channels = step.shape[1]
        layer.weight, layer.bias = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        if step.op == "relax.multiply":
            layer.weight = np.asarray(self._channel_vector(step), np.float32)
            return self._take_bias(layer, step)
        if step.op == "relax.add":
            layer.bias = np.asarray(self._channel_vector(step), np.float32)
            return step
        layer.low, layer.high = _limits(step)
        return step

    def _take_activation(self, layer: Layer, last: Step) -> Step:
        user = self._sole_user(last)
        if layer.has_activation or user is None or user.op not in ("relax.nn.relu", "relax.clip"):
            return last
        layer.low, layer.high = _limits(user)
        self.used.add(user.name)
        return user


def _repeats_pixels(step: Step) -> bool:
    """Whether a step resizes an image by taking the nearest pixels, in the dtype of the image."""
    if step.op != "relax.image.resize2d" or str(step.call.attrs.method) != "nearest_neighbor":
        return False
    return str(step.call.attrs.out_dtype) in ("", "None", "void")


def is_item(step: Step) -> bool:
    """Whether a step takes a value out of a tuple."""
    return step.op.startswith("get_item.")


def is_plain_transposed(attrs: Any) -> bool:
    """Whether kernels and interpreter support a transposed convolution: NCHW, IOHW, one group, no dilation."""
    plain = str(attrs.data_layout) == "NCHW" and str(attrs.kernel_layout) == "IOHW"
    return plain and int(attrs.groups) == 1 and all(int(d) == 1 for d in attrs.dilation)


def _limits(step: Step) -> tuple[float, float]:
    if step.op == "relax.nn.relu":
        return 0.0, math.inf
    expressions: list[Any] = [argument.expression for argument in step.args[1:3] if isinstance(argument, Other)]
    low, high = (float(getattr(expression, "value", expression)) for expression in expressions)
    return low, high


def channel_vector(constant: Array, shape: tuple[int, ...]) -> Array | None:
    """Return a constant that broadcasts over all axes of (N, C, ...) but C as (C,), None for any other."""
    if len(shape) < 2:
        return None
    full = (1,) * (len(shape) - constant.ndim) + constant.shape
    if constant.size == 1:
        return np.full(shape[1], constant.reshape(-1)[0], constant.dtype)
    if len(full) == len(shape) and full == tuple(shape[1] if axis == 1 else 1 for axis in range(len(shape))):
        return constant.reshape(-1)
    return None

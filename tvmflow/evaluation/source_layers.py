"""Name the steps of a network after the layers of its source: `layer1.0.conv1` instead of `lv7` or `conv3`.

Importers name nothing, and passes rename. But the operators with weights stay in order, each with as many weights as
in the source: where all of them agree, each gets the name of its layer, and what follows it is said to follow it.
Where one does not, no step gets a name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tvmflow.frontends.source_model import WeightedLayer
from tvmflow.ir.relax.graph import Graph, Step, operators_named
from tvmflow.support.json_values import read_json, write_json

LAYERS_NAME = "layers.json"
_WEIGHTED = operators_named("nn.conv1d nn.conv2d nn.conv3d nn.conv1d_transpose nn.conv2d_transpose matmul")


@dataclass(frozen=True)
class SourceLayers:
    """The layers of a source with weights, in order, and where they are in a form of the network.

    steps: name of a step -> the layer that it computes; after: name of another step -> the last such layer before it.
    Both are empty where the form is not known to have these layers.
    """

    layers: tuple[WeightedLayer, ...] = ()
    steps: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)


def locate_layers(graph: Graph, layers: Sequence[WeightedLayer]) -> SourceLayers:
    """Return where the layers of a source are in a graph."""
    weighted = [step for step in graph.steps if _weights(step)]
    if [_weights(step) for step in weighted] != [layer.weights for layer in layers]:
        return SourceLayers(tuple(layers))
    steps = {plain_name(step.name): layer.name for step, layer in zip(weighted, layers, strict=True)}
    after: dict[str, str] = {}
    for step in graph.steps:
        name = plain_name(step.name)
        before = [found for ref in step.refs if (found := steps.get(plain_name(ref)) or after.get(plain_name(ref)))]
        if name not in steps and before:
            after[name] = before[-1]
    return SourceLayers(tuple(layers), steps, after)


def plain_name(name: str) -> str:
    """Return the name of a step as a variable of the packed network has it."""
    return name.replace(".", "_")


def _weights(step: Step) -> int:
    """Return how many weights a step multiplies by, 0 for a step without."""
    weight = step.args[1] if step.op in _WEIGHTED and len(step.args) > 1 else None
    return math.prod(weight.shape) if isinstance(weight, np.ndarray) and weight.ndim > 1 else 0


def write_layers(folder: Path, layers: SourceLayers) -> None:
    """Write layers.json."""
    write_json(folder / LAYERS_NAME, layers)


def read_layers(folder: Path) -> SourceLayers:
    """Read layers.json. Raises OSError, or ValueError for other JSON."""
    return read_json(SourceLayers, folder / LAYERS_NAME)

"""Put what was measured of a cell's kernels back to the layers of its source: times, memory, quantization errors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tvmflow.backends.plan_summary import PLAN_NAME, PlannedCall, PlanSummary
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.evaluation.source_layers import LAYERS_NAME, SourceLayers
from tvmflow.frontends.source_model import WeightedLayer
from tvmflow.report.tables import trusted_bytes
from tvmflow.support.json_values import from_json

T = TypeVar("T")
_WEIGHTED_KINDS = ("conv", "conv_transpose", "dense")  # of quantization.json
_OPERATORS = ("pool", "softmax", "concat", "resize", "mean", "sum", "add", "multiply", "reshape", "transpose", "cast")


@dataclass(frozen=True)
class Call:
    """A call of a kernel in a run. label: the layers that it computes, or what it does after which layer; layers: their
    names; ms: an equal share of the kernel's time, None where that was not measured.
    """

    kernel: str
    label: str
    layers: tuple[str, ...]
    ms: float | None
    live_bytes: int


@dataclass(frozen=True)
class LayerTime:
    """A layer of the source and what a run spends in the kernels that compute it, with what is fused into them."""

    layer: WeightedLayer
    kernels: tuple[str, ...]
    ms: float | None


@dataclass(frozen=True)
class CellLayers:
    """The calls of a run in order, and the layers of the source in order. arena_bytes: of the plan."""

    calls: tuple[Call, ...] = ()
    layers: tuple[LayerTime, ...] = ()
    arena_bytes: int = 0

    def to_json(self, quantization: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the page shows: texts are stored once. quantization: the report on quantized layers."""
        return {
            "labels": self.labels,
            "calls": [[call.kernel, call.ms, call.live_bytes] for call in self.calls],
            "arena_bytes": self.arena_bytes,
            "source": [
                [one.layer.name, one.layer.operator, one.layer.weights, one.kernels, one.ms] for one in self.layers
            ],
            "noisy": name_noisy_layers(quantization, [one.layer for one in self.layers]),
        }

    @property
    def labels(self) -> dict[str, str]:
        """Return kernel -> what its calls compute: a few layers, and how many others."""
        found: dict[str, list[str]] = {}
        for call in self.calls:
            found.setdefault(call.kernel, []).append(call.label)
        return {kernel: _few(list(dict.fromkeys(filter(None, labels)))) for kernel, labels in found.items()}


def layers_of(workspace: Workspace, cell: Cell, card: Scorecard | None) -> CellLayers:
    """Return the calls and layers of a cell's newest build; nothing where a file is missing, damaged or older."""
    plan = _read(workspace, cell, "build", PLAN_NAME, PlanSummary)
    known = _read(workspace, cell, "quantize", LAYERS_NAME, SourceLayers)
    if plan is None or known is None:
        return CellLayers()
    calls = tuple(_calls(plan.calls, known, card.kernels_ms if card else {}))
    return CellLayers(calls, tuple(_layers(known.layers, calls)), plan.arena_bytes)


def _read(workspace: Workspace, cell: Cell, stage: str, name: str, kind: type[T]) -> T | None:
    try:
        data = trusted_bytes(workspace.folder(stage, cell), name)
        return None if data is None else from_json(kind, json.loads(data))
    except ValueError:
        return None


def _calls(planned: Sequence[PlannedCall], known: SourceLayers, times_ms: Mapping[str, float]) -> Iterator[Call]:
    counts = Counter(call.kernel for call in planned)
    for call in planned:
        ms = times_ms[call.kernel] / counts[call.kernel] if call.kernel in times_ms else None
        layers = tuple(dict.fromkeys(known.steps[step] for step in call.steps if step in known.steps))
        after = next((known.after[step] for step in call.steps if step in known.after), None)
        label = " + ".join(layers) or (f"{_operator(call.kernel)} after {after}" if after else "")
        yield Call(call.kernel, label, layers, ms, call.live_bytes)


def _operator(kernel: str) -> str:
    """Return what a kernel without a layer does, by its name."""
    return next((name for name in _OPERATORS if name in kernel), kernel.removeprefix("fused_").split("_")[0])


def _layers(layers: Sequence[WeightedLayer], calls: Sequence[Call]) -> Iterator[LayerTime]:
    for layer in layers:
        mine = [call for call in calls if layer.name in call.layers]
        known = [call.ms / len(call.layers) for call in mine if call.ms is not None]
        kernels = tuple(dict.fromkeys(call.kernel for call in mine))
        yield LayerTime(layer, kernels, sum(known) if known else None)


def _few(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:2])
    return f"{shown} and {len(labels) - 2} more" if len(labels) > 2 else shown


def name_noisy_layers(quantization: Mapping[str, Any], layers: Sequence[WeightedLayer]) -> list[str]:
    """Return a label for each layer of quantization.json: the source's name, or which layer it follows; its own name
    where the report has other layers than the source.
    """
    rows = quantization.get("layers") or []
    weighted = [row["name"] for row in rows if row.get("kind") in _WEIGHTED_KINDS]
    if len(weighted) != len(layers):
        return [str(row["name"]) for row in rows]
    names = dict(zip(weighted, (layer.name for layer in layers), strict=True))
    found, last = list[str](), ""
    for row in rows:
        last = names.get(row["name"], last)
        own = names.get(row["name"])
        found.append(own or (f"{row['name']}, after {last}" if last else str(row["name"])))
    return found

"""Partition a quantized graph into VTA regions and CPU steps, and record the reasons for the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvmflow.ir.relax.graph import Graph, Step
from tvmflow.support.errors import ProgramError, UnknownNameError
from tvmflow.vta.compiler.extract import Chain, Extraction, extract, layer_name
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.region import Conv, Region

Piece = Region | tuple[Step, ...]
Run = tuple[int, int]
GLOBAL_POOL = "nn.global_avg_pool2d"


@dataclass(frozen=True)
class Split:
    """pieces: regions, and the CPU's steps before, between and behind them. layers: of each region, by name; reasons:
    why others stay on the CPU.
    """

    pieces: tuple[Piece, ...]
    layers: tuple[tuple[str, ...], ...]
    reasons: dict[str, str]

    @property
    def regions(self) -> tuple[Region, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, Region))

    @property
    def offloaded(self) -> tuple[str, ...]:
        """Return all layers on VTA."""
        return tuple(name for layers in self.layers for name in layers)


def split(graph: Graph, config: VtaConfig, start: str = "auto", stop: str = "auto") -> Split:
    """Cut out every run of layers that multiplies, from `start` to before `stop`.

    start: the first layer on VTA, or the kind of operator behind whose first one VTA begins. stop: the first layer
    behind VTA, or the kind of operator before whose next one it ends. `nn.global_avg_pool2d`, which is no operator of
    Relax, is the average of whole images. Raises UnknownNameError for what is neither,
    ProgramError when nothing is left for VTA.
    """
    extraction = extract(graph, config)
    bounds = _bounds(extraction, start, stop)
    runs = _runs(extraction, bounds)
    if not runs:
        raise ProgramError(f"no layers between start {start!r} and stop {stop!r}", "start before stop")
    pieces: list[Piece] = []
    at = 0
    for first, last in runs:
        pieces += [tuple(extraction.steps_of(extraction.items[at:first])), _region(extraction, first, last)]
        at = last
    pieces.append(tuple(extraction.steps_of(extraction.items[at:])))
    layers = tuple(tuple(_name(item) for item in extraction.items[first:last]) for first, last in runs)
    return Split(tuple(pieces), layers, _reasons(extraction, runs, bounds))


def _name(item: Chain | Step) -> str:
    return layer_name(item.operator.name) if isinstance(item, Chain) else ""


def _region(extraction: Extraction, first: int, last: int) -> Region:
    """Return the operators of a run; its outputs are what anybody outside reads."""
    inside = [item for item in extraction.items[first:last] if isinstance(item, Chain)]
    own = {item.operator.name for item in inside}
    outside = extraction.steps_of([*extraction.items[:first], *extraction.items[last:]])
    read = {name for step in outside for name in step.refs} | set(extraction.graph.outputs)
    inputs = {n: extraction.shapes[n] for item in inside for n in item.operator.inputs if n not in own}
    outputs = tuple(item.operator.name for item in inside if item.operator.name in read)
    return Region(inputs, tuple(item.operator for item in inside), outputs)


def _bounds(extraction: Extraction, start: str, stop: str) -> Run:
    """Return [first, last) items between start and stop."""
    names = [_name(item) for item in extraction.items]
    if not any(names):
        reasons = "; ".join(f"{name}: {why}" for name, why in list(extraction.reasons.items())[:3])
        raise ProgramError(
            f"nothing in this network that VTA can compute{' (' + reasons + ')' if reasons else ''}",
            "int8 convolutions with power-of-two scales",
            "use precision vta_int8",
        )
    first = 0 if start == "auto" else _place(extraction, names, "start", start, 0)
    if start != "auto" and start not in names:
        first += 1
    return first, len(names) if stop == "auto" else _place(extraction, names, "stop", stop, first)


def _place(extraction: Extraction, names: list[str], word: str, wanted: str, begin: int) -> int:
    """Return where a layer is, or the first layer or operator of a kind from `begin` on."""
    if wanted in names:
        return names.index(wanted)
    kind, kinds = wanted.removeprefix("relax."), set[str]()
    for at, item in enumerate(extraction.items):
        steps = item.steps if isinstance(item, Chain) else (item,)
        own = {step.op.removeprefix("relax.") for step in steps if step.op != "constant"}
        own |= {GLOBAL_POOL} if any(map(_averages_images, steps)) else set()
        layers = {layer_name(step.name) for step in steps if not step.name.startswith("lv")}
        if kind in own | layers | {layer.rstrip("0123456789") for layer in layers} and at >= begin:
            return at
        kinds |= own
    legal = ["auto", *filter(None, names), *kinds]
    raise UnknownNameError(f"no layer {wanted!r} on VTA, and no operator of that name ({word})", legal=legal)


def _averages_images(step: Step) -> bool:
    """Return whether a step sums or averages over both axes of an image, as global pools do in Relax."""
    if step.op not in ("relax.sum", "relax.mean") or step.call.attrs.axis is None:
        return False
    return {int(axis) for axis in step.call.attrs.axis} in ({2, 3}, {-2, -1})


def _runs(extraction: Extraction, bounds: Run) -> list[Run]:
    """Return the runs of layers between the bounds: those with a convolution, or all when none has one."""
    runs, begin = [], bounds[0]
    for at in range(bounds[0], bounds[1] + 1):
        if at == bounds[1] or not isinstance(extraction.items[at], Chain):
            if begin < at:
                runs.append((begin, at))
            begin = at + 1
    return [run for run in runs if _multiplies(extraction.items[run[0] : run[1]])] or runs


def _multiplies(items: Sequence[Chain | Step]) -> bool:
    return any(isinstance(item, Chain) and isinstance(item.operator, Conv) for item in items)


# -- reasons ----------------------------------------------------------------------------------------------------------

_WRITTEN_BY_QUANTIZER = ("_scaled_input", "_whole", "_float", "_scaled", "_sum")
_WHY = {
    "relax.sum": "an average: VTA cannot divide",
    "relax.divide": "an average: VTA cannot divide",
    "relax.nn.conv2d": "left in float32 by the quantizer",
    "relax.matmul": "left in float32 by the quantizer",
}


def _reasons(extraction: Extraction, runs: list[Run], bounds: Run) -> dict[str, str]:
    """Return, for every layer on the CPU, why it is there."""
    inside = {at for first, last in runs for at in range(first, last)}
    quantized = {
        step.name.removesuffix("_scaled_input")
        for step in extraction.graph.steps
        if step.name.endswith("_scaled_input")
    }
    reasons = dict(extraction.reasons)
    for at, item in enumerate(extraction.items):
        if at in inside:
            continue
        name = _name(item)
        if isinstance(item, Chain):
            reasons[name] = "no convolution beside it" if bounds[0] <= at < bounds[1] else "outside of start and stop"
        elif (name := _layer_of(item, quantized)) and name not in reasons:
            op = item.op.removeprefix("relax.")
            if name.startswith("affine"):
                reasons[name] = "a factor for each channel, as of a batch norm: it would need a multiplier"
            elif item.dtype != "int8":
                reasons[name] = _WHY.get(item.op, f"VTA has no {op}: computed in {item.dtype}")
            else:
                reasons[name] = _integer_reason(extraction.graph, item)
    return reasons


def _layer_of(step: Step, quantized: set[str]) -> str:
    """Return the layer whose value a step is; nothing for what the quantizer wrote around layers."""
    name = layer_name(step.name)
    if step.op == "constant" or step.name.startswith("lv") or step.name.endswith(_WRITTEN_BY_QUANTIZER):
        return ""
    return "" if step.name.endswith("_q") and name in quantized else name


def _integer_reason(graph: Graph, step: Step) -> str:
    """Return why a layer of integers is no operator of VTA: the last thing before its cast that VTA does not have."""
    while step.op in ("relax.astype", "relax.clip", "relax.right_shift", "relax.add") and step.refs:
        before = next((s for s in graph.steps if s.name == step.refs[0]), None)
        if before is None:
            break
        step = before
    op = step.op.removeprefix("relax.")
    return (
        _WHY.get(step.op, f"VTA has no {op}")
        if step.op not in ("relax.nn.conv2d", "relax.matmul")
        else "another layout"
    )

"""Write what a cell did as files of other tools: a trace for Perfetto or Chrome, node data for Model Explorer.

The trace has the stages that made the cell with the steps of their work, and the kernels of one run of its library with
the memory in use. Stages stand one after the other, as they are made, whenever that was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvmflow.config.params import STAGE_NAMES, Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME, Record, read_record
from tvmflow.report.layers import CellLayers, layers_of
from tvmflow.report.tables import scorecard
from tvmflow.support.errors import StoreError, UsageError

_PIPELINE, _RUN = 1, 2  # numbers of the two processes of the trace
_GRADIENT = ((0.0, "#fff5eb"), (0.5, "#fd8d3c"), (1.0, "#a63603"))


@dataclass(frozen=True)
class Trace:
    """events: of the format for traces of Chromium; without kernels where none was timed."""

    events: tuple[dict[str, Any], ...]
    stages: int
    kernels: int

    def to_json(self) -> dict[str, Any]:
        return {"traceEvents": list(self.events), "displayTimeUnit": "ms"}


def trace_of(workspace: Workspace, cell: Cell) -> Trace:
    """Return the trace of a cell. Raises StoreError if no stage of it was made."""
    records = list(_records(workspace, cell))
    if not records:
        raise StoreError(f"no stage of {cell} was made here", "at least one", f"run 'tvmflow run {cell}'")
    layers = layers_of(workspace, cell, scorecard(workspace, cell))
    kernels = list(_kernels(layers))
    names = [_named(_PIPELINE, f"stages of {cell}"), *([_named(_RUN, f"one run of {cell}")] if kernels else [])]
    count = sum(event["ph"] == "X" for event in kernels)
    return Trace((*names, *_stages(records), *kernels), len(records), count)


def _records(workspace: Workspace, cell: Cell) -> Iterator[Record]:
    for stage in STAGE_NAMES:
        try:
            yield read_record(workspace.folder(stage, cell) / RECORD_NAME)
        except StoreError:
            continue


def _named(process: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": process, "tid": 1, "args": {"name": name}}


def _event(process: int, name: str, begin_us: float, length_us: float, **facts: Any) -> dict[str, Any]:
    times = {"ts": round(begin_us, 3), "dur": round(length_us, 3)}
    return {"ph": "X", "name": name, "cat": "stage" if process == _PIPELINE else "kernel", **times, "pid": process} | {
        "tid": 1,
        "args": facts,
    }


def _stages(records: list[Record]) -> Iterator[dict[str, Any]]:
    begin = 0.0
    for record in records:
        length = 1e6 * record.elapsed_s
        facts = {"made": record.created, "recipe": record.key[:12]}
        yield _event(_PIPELINE, record.stage, begin, length, **facts)
        ends = [*(1e6 * began for _, began in record.steps[1:]), length]
        for (text, began), end in zip(record.steps, ends, strict=True) if record.steps else ():
            yield _event(_PIPELINE, text, begin + 1e6 * began, max(0.0, end - 1e6 * began))
        begin += length


def _kernels(layers: CellLayers) -> Iterator[dict[str, Any]]:
    begin = 0.0
    if any(call.ms is None for call in layers.calls):
        return
    for call in layers.calls:
        length = 1e3 * (call.ms or 0.0)
        facts = {"kernel": call.kernel, "layers": list(call.layers), "live bytes": call.live_bytes}
        yield _event(_RUN, call.label or call.kernel, begin, length, **facts)
        memory = {"ph": "C", "name": "memory in use", "ts": round(begin, 3), "pid": _RUN, "tid": 1}
        yield memory | {"args": {"bytes": call.live_bytes}}
        begin += length


def node_data_of(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    """Return the latency of each layer of the source as node data of Model Explorer for the model's file. Raises
    UsageError where the layers' times are not known.
    """
    layers = layers_of(workspace, cell, scorecard(workspace, cell))
    results = {one.layer.node: {"value": one.ms} for one in layers.layers if one.ms is not None and one.layer.node}
    if not results:
        raise UsageError(
            f"no times of the layers of {cell}",
            "kernels that evaluate timed on this machine's CPU, and a source whose layers are found in the network",
            f"run 'tvmflow run {cell} --again'; 'tvmflow report' shows which layers are known",
        )
    gradient = [{"stop": stop, "bgColor": color} for stop, color in _GRADIENT]
    return {"name": f"{cell}, ms", "results": results, "gradient": gradient}

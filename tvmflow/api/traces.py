"""Write traces and node data of cells for viewers of other projects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.api.workspace import CellName, Where, cell_of, open_workspace

if TYPE_CHECKING:
    from tvmflow.report.trace import Trace


def write_trace(cell: CellName, path: Path, workspace: Where = None) -> Trace:
    """Write the stages of a cell and the kernels of one run as a trace for Perfetto (ui.perfetto.dev) or Chrome."""
    from tvmflow.report.trace import trace_of

    where = open_workspace(workspace)
    trace = trace_of(where, cell_of(where, cell))
    _write(path, trace.to_json())
    return trace


def write_node_data(cell: CellName, path: Path, workspace: Where = None) -> int:
    """Write the latency of the source's layers as node data for Model Explorer; return how many layers have one."""
    from tvmflow.report.trace import node_data_of

    where = open_workspace(workspace)
    data = node_data_of(where, cell_of(where, cell))
    _write(path, data)
    return len(data["results"])


def _write(path: Path, data: dict[str, Any]) -> None:
    from tvmflow.support.files import write_atomic

    write_atomic(path, json.dumps(data, indent=1))

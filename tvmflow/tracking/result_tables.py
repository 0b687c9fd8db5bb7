"""Read and write results/MODEL.yaml: a row for each cell and kind of device, and the quarantined cells.

The files belong into git, so that a change of a number is a line of a review. Equal measurements give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from tvmflow.config.params import Cell
from tvmflow.config.stage_params import Frozen
from tvmflow.config.value_types import Line, Name, Sha256
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.fleet import newest_of_each
from tvmflow.support.errors import StoreError
from tvmflow.support.files import write_atomic

FOLDER = "results"
_HEADER = (
    "# Written by 'tvmflow results update': the newest measurement of each cell on each kind of device. Belongs into\n"
    "# git. Several units: the one in the middle, its latency with the range of all.\n"
)
_MAX_BYTES = 16 << 20
NEWEST = 5  # measurements of a unit among which a quiet one is looked for
_Number = Annotated[float, Field(strict=False)] | None


class ResultRow(Frozen):
    """The numbers of a cell on a kind of device. error: largest, relative to the spread of the outputs; badges: what
    disturbed the latency; round_trip_ns: the state of the machine.
    """

    cell: Line
    device: Line
    units: Annotated[int, Field(ge=1)]
    latency_ms: _Number = None
    low_ms: _Number = None
    high_ms: _Number = None
    round_trip_ns: _Number = None
    badges: str = ""
    memory_bytes: _Number = None
    library_bytes: _Number = None
    accuracy: _Number = None
    error: _Number = None
    tools: dict[str, str]
    library_sha256: Sha256
    network_sha256: str = ""
    measured: Line

    @property
    def key(self) -> tuple[str, str]:
        return self.cell, self.device


class Held(Frozen):
    """A quarantined cell: no gate lets it pass until that day is over. issue: where it is worked on."""

    cell: Line
    reason: Line
    issue: Line
    until: date

    def is_over(self, today: date | None = None) -> bool:
        return (today or datetime.now(UTC).date()) > self.until

    @property
    def text(self) -> str:
        """Return the reason against a release, as text."""
        return f"{self.cell} is in quarantine until {self.until}: {self.reason} ({self.issue})"


class ResultTable(Frozen):
    """The content of results/MODEL.yaml."""

    model: Name
    rows: Annotated[tuple[ResultRow, ...], Field(strict=False)] = ()
    quarantine: Annotated[tuple[Held, ...], Field(strict=False)] = ()


def target_of(cell: str) -> str:
    return cell.partition("@")[2].partition(":")[0]


def table_path(workspace: Workspace, model: str) -> Path:
    return workspace.root / FOLDER / f"{model}.yaml"


def read_table(workspace: Workspace, model: str) -> ResultTable:
    """Return the table of a model, empty without a file. Raises StoreError for a damaged one."""
    path = table_path(workspace, model)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise StoreError(f"{path} has {path.stat().st_size} bytes", f"at most {_MAX_BYTES}")
        table = ResultTable.model_validate(yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER))  # noqa: S506
        if table.model != model or len({row.key for row in table.rows}) < len(table.rows):
            raise ValueError("another model, or a row twice")
        return table
    except FileNotFoundError:
        return ResultTable(model=model)
    except (ValidationError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise StoreError(
            f"{path} is damaged: {' '.join(str(error).split())[:200]}",
            "the file as written by tvmflow",
            f"restore it with 'git checkout {FOLDER}/{model}.yaml'",
        ) from None


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where PyYAML has it


def write_table(workspace: Workspace, table: ResultTable) -> None:
    """Replace the file of a model atomically."""
    data = table.model_dump(mode="python", exclude_none=True)
    data["rows"] = sorted(data["rows"], key=lambda row: (row["cell"], row["device"]))
    data["quarantine"] = sorted(data["quarantine"], key=lambda one: str(one["cell"]))
    for row in data["rows"]:
        row["tools"] = dict(sorted(row["tools"].items()))
    text = yaml.safe_dump(data, sort_keys=False, width=120, allow_unicode=True)
    write_atomic(table_path(workspace, table.model), _HEADER + text)


def rows_of(measurements: Iterable[Mapping[str, Any]]) -> dict[str, list[ResultRow]]:
    """Return model -> its rows, sorted. measurements: rows of the history, oldest first."""
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for (cell, device, _), of_unit in newest_of_each(list(measurements), NEWEST).items():
        quiet = [row for row in of_unit if not row["badges"]]
        kinds.setdefault((cell, device), []).append((quiet or of_unit)[-1])
    found: dict[str, list[ResultRow]] = {}
    for key in sorted(kinds):
        found.setdefault(kinds[key][0]["model"], []).append(_row(kinds[key]))
    return found


def _row(units: list[Mapping[str, Any]]) -> ResultRow:
    """Return the row of the newest measurement of each unit of a kind."""
    newest = max(units, key=lambda row: (row["time_ms"], row["run_id"]))
    alike = [row for row in units if row["sha256"] == newest["sha256"]]  # others were not measured with this library
    ordered = sorted(alike, key=lambda row: (row["latency_ms"] or 0.0, row["unit"], row["run_id"]))
    middle = ordered[(len(ordered) - 1) // 2]
    lows, highs = ([row[name] for row in alike if row[name] is not None] for name in ("low_ms", "high_ms"))
    return ResultRow(
        cell=middle["cell"],
        device=middle["device"],
        units=len(alike),
        latency_ms=_rounded(middle["latency_ms"]),
        low_ms=_rounded(min(lows, default=None)),
        high_ms=_rounded(max(highs, default=None)),
        round_trip_ns=_rounded(middle["round_trip_ns"]),
        badges=middle["badges"],
        memory_bytes=_rounded(middle["memory_bytes"]),
        library_bytes=_rounded(middle["library_bytes"]),
        accuracy=_rounded(middle["accuracy_share"]),
        error=_rounded(middle["max_relative_error"]),
        tools=dict(middle["tools"]),
        library_sha256=middle["sha256"],
        network_sha256=middle["network_sha256"],
        measured=middle["when"],
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def hold(workspace: Workspace, held: Held) -> None:
    """Put a cell into quarantine, or replace its entry."""
    model = held.cell.partition("@")[0]
    table = read_table(workspace, model)
    others = tuple(one for one in table.quarantine if one.cell != held.cell)
    write_table(workspace, table.model_copy(update={"quarantine": (*others, held)}))


def lift(workspace: Workspace, cell: Cell) -> None:
    """End the quarantine of a cell. Raises StoreError if it is in none."""
    table = read_table(workspace, cell.model)
    others = tuple(one for one in table.quarantine if one.cell != str(cell))
    if len(others) == len(table.quarantine):
        raise StoreError(f"{cell} is not in quarantine", f"a cell under quarantine: in {FOLDER}/{cell.model}.yaml")
    write_table(workspace, table.model_copy(update={"quarantine": others}))


def held_reasons(workspace: Workspace, cell: str) -> list[str]:
    """Return why a cell may not be released or chosen: its quarantine, unless that is over. Raises StoreError."""
    table = read_table(workspace, cell.partition("@")[0])
    return [one.text for one in table.quarantine if one.cell == cell and not one.is_over()]

"""Find what got worse between two moments, on each unit, and summarise the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.fleet import NEWEST, UnitChange, changes_of_units, newest_of_each, suspects

_MOST_LINES = 20  # of a text about the fleet


@dataclass(frozen=True)
class Unit:
    """A device of the fleet. cells: number of cells that it measured; last: day of the newest measurement; compared,
    worse: of its cells.
    """

    device: str
    unit: str
    cells: int
    last: str
    compared: int
    worse: int


@dataclass(frozen=True)
class Regressions:
    """What changed between two moments, by cell and unit. suspects: sentences about sick units and whole kinds of
    devices; unmeasured: cells and units that have no measurement of both; units: all of the fleet.
    """

    since: str
    until: str
    changes: tuple[UnitChange, ...]
    suspects: tuple[str, ...]
    unmeasured: tuple[str, ...]
    units: tuple[Unit, ...] = ()

    @property
    def worse(self) -> tuple[UnitChange, ...]:
        return tuple(one for one in self.changes if one.worse)

    @property
    def text(self) -> str:
        """Return what got worse as lines."""
        kinds = len({one.device for one in self.units})
        head = (
            f"{len(self.worse)} of {len(self.changes)} got worse from {self.since} to {self.until}; units: "
            f"{len(self.units)}, kinds of devices: {kinds}"
        )
        lines = [f"{one.cell} on {one.device} {one.unit}: {'; '.join(one.worse)}" for one in self.worse]
        more = [f"and {len(lines) - _MOST_LINES} more: tvmflow regressions"] if len(lines) > _MOST_LINES else []
        return "\n".join([head, *self.suspects, *lines[:_MOST_LINES], *more])

    def to_json(self) -> dict[str, Any]:
        return {
            "from": self.since,
            "to": self.until,
            "changes": [one.to_json() for one in self.changes],
            "worse": len(self.worse),
            "suspects": list(self.suspects),
            "unmeasured": list(self.unmeasured),
            "units": [asdict(one) for one in self.units],
        }


def regressions_between(workspace: Workspace, since: str, until: str, model: str | None = None) -> Regressions:
    """Compare each cell at two moments, on each unit with itself. Raises UsageError for a moment without measurements.
    model: None: all.
    """
    from tvmflow.tracking.mlflow.history import overview  # with numpy, which the API needs only when it is asked
    from tvmflow.tracking.moments import check_known, moment

    a, b = moment(workspace, since), moment(workspace, until)
    newest: dict[tuple[str, str, str], Mapping[str, Any]] = {}

    def wanted(row: Any) -> bool:
        return b.holds(row) and (a.until_ms is None or row["time_ms"] >= a.until_ms)

    def pick(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        check_known(rows, a, b)
        newest.update({group: of[-1] for group, of in newest_of_each(rows).items()})
        sides = [[row for row in rows if holds(row)] for holds in (a.holds, wanted)]
        kept = {row["run_id"] for side in sides for of in newest_of_each(side, NEWEST).values() for row in of}
        return [row for row in rows if row["run_id"] in kept]

    rows = overview(workspace, model, pick)
    before, now = [row for row in rows if a.holds(row)], [row for row in rows if wanted(row)]
    found = changes_of_units(before, now, workspace.params.release.max_accuracy_drop)
    compared = {(one.cell, one.device, one.unit) for one in found}
    missing = sorted(newest.keys() - compared)
    unmeasured = tuple(f"{cell} on {device} {unit}".rstrip() for cell, device, unit in missing)
    units = _units(newest, found)
    return Regressions(since, until, tuple(found), tuple(suspects(found)), unmeasured, units)


def _units(newest: Mapping[tuple[str, str, str], Mapping[str, Any]], changes: Sequence[UnitChange]) -> tuple[Unit, ...]:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for (_cell, device, unit), row in newest.items():
        groups.setdefault((device, unit), []).append(row)
    units = []
    for (device, unit), rows in sorted(groups.items()):
        own = [one for one in changes if (one.device, one.unit) == (device, unit)]
        last = max(rows, key=lambda row: row["time_ms"])["time_ms"]
        day = datetime.fromtimestamp(last / 1000, UTC).strftime("%Y-%m-%d")
        units.append(Unit(device, unit, len(rows), day, len(own), sum(bool(one.worse) for one in own)))
    return tuple(units)

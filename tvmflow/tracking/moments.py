"""Select measurements by a moment: a date, a version of TVM, a role in the model registry, a release of an app."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import UsageError
from tvmflow.tracking.app_releases import read_releases
from tvmflow.tracking.mlflow.registry import CHAMPION

NOW = "now"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2})?$")
_RELEASE = re.compile(r"(?P<app>[\w-]+):(?P<name>[\w-]+)$")
_ROLES = (CHAMPION, "challenger", "previous")
_KINDS = "a date (2026-11-28, or 2026-11-28T09:00, in UTC), a version of TVM, champion, previous, APP:VERSION, or now"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Moment:
    """text: as written. holds: whether a measurement belongs to it. until_ms: of a date, in milliseconds since 1970."""

    text: str
    holds: Callable[[Row], bool]
    until_ms: int | None = None


def moment(workspace: Workspace, text: str) -> Moment:
    """Return the moment of a text. Raises UsageError, StoreError for a damaged release file."""
    if text == NOW:
        return Moment(text, lambda _row: True)
    if _DATE.match(text):
        return _date(text)
    if text in _ROLES:
        return Moment(text, lambda row: text in row["roles"])
    if (match := _RELEASE.match(text)) and match["app"] in workspace.params.apps:
        return _release(workspace, text, match["app"], match["name"])
    if not re.match(r"\d", text):
        raise UsageError(f"no moment {text!r}", _KINDS)
    return Moment(text, lambda row: row["tvm"] == text or str(row["tvm"]).startswith(f"{text}."))


def check_known(rows: Iterable[Row], *moments: Moment) -> None:
    """Raise UsageError for a moment to which no measurement belongs."""
    rows = list(rows)
    for one in moments:
        if rows and not any(one.holds(row) for row in rows):
            known = ", ".join(sorted({str(row["tvm"]) for row in rows}))
            first = datetime.fromtimestamp(min(row["time_ms"] for row in rows) / 1000, UTC).strftime("%Y-%m-%d")
            raise UsageError(
                f"no measurement belongs to {one.text!r}",
                _KINDS,
                f"there are measurements since {first}, with TVM {known}",
            )


def _date(text: str) -> Moment:
    try:
        when = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"no date {text!r}", _KINDS) from None
    until = when + (timedelta(minutes=1) if len(text) > len("2026-11-28") else timedelta(days=1))
    until_ms = int(until.timestamp() * 1000)
    return Moment(text, lambda row: row["time_ms"] < until_ms, until_ms)


def _release(workspace: Workspace, text: str, app: str, name: str) -> Moment:
    known = read_releases(workspace, app)
    version = (
        next((one for one in known.versions if str(one.version) == name), None)
        if name.isdigit()
        else known.current(name)
    )
    if version is None:
        numbers = [str(one.version) for one in known.versions]
        raise UsageError(
            f"no release {text!r}", f"APP:VERSION or APP:CHANNEL: {', '.join([*numbers, *known.channels])}"
        )
    libraries = {(one.cell, one.library_sha256) for one in version.cells}
    return Moment(text, lambda row: (row["cell"], row["sha256"]) in libraries)

"""Test the moments that measurements are compared at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import CELL, small_params
from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import UsageError
from tvmflow.tracking import app_releases as ledger
from tvmflow.tracking.moments import check_known, moment

DAY_MS = 86_400_000
START_MS = 1_767_225_600_000  # 2026-01-01


def _row(**given: Any) -> dict[str, Any]:
    return {"cell": CELL, "sha256": "a" * 64, "tvm": "0.27.0.post1", "time_ms": START_MS, "roles": [], **given}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(small_params() | {"apps": {"demo": {"cells": [CELL]}}}))
    found = Workspace(tmp_path)
    bundle = ledger.Bundle(sha256="0" * 64, md5="0" * 32, size=1, signer=None)
    versions = []
    for number, digit in ((1, "a"), (2, "b")):
        cell = ledger.ReleasedCell(
            cell=CELL, abi="x86_64-linux-gnu", version="1", library_sha256=digit * 64, network_sha256="0" * 64
        )
        versions.append(ledger.Version(version=number, bundle=bundle, evidence_sha256="0" * 64, cells=(cell,)))
    releases = ledger.Releases(app="demo", versions=tuple(versions))
    ledger.write_releases(found, releases.add_change("release", "beta", 1).add_change("release", "beta", 2))
    return found


def test_each_kind_of_moment_holds_what_belongs_to_it(workspace: Workspace) -> None:
    cases: list[tuple[str, dict[str, Any], bool]] = [
        ("now", {}, True),
        ("2026-01-01", {"time_ms": START_MS + DAY_MS - 1}, True),
        ("2026-01-01", {"time_ms": START_MS + DAY_MS}, False),
        ("2026-01-01T00:00", {"time_ms": START_MS + 59_999}, True),
        ("2026-01-01T00:00", {"time_ms": START_MS + 60_000}, False),
        ("0.27", {}, True),
        ("0.27.0.post1", {}, True),
        ("0.2", {}, False),
        ("champion", {"roles": ["champion"]}, True),
        ("champion", {"roles": ["challenger"]}, False),
        ("demo:1", {}, True),
        ("demo:2", {}, False),
        ("demo:beta", {"sha256": "b" * 64}, True),
        ("demo:beta", {"sha256": "b" * 64, "cell": "other@local-cpu:int8"}, False),
    ]
    for text, given, holds in cases:
        assert moment(workspace, text).holds(_row(**given)) is holds, (text, given)


def test_what_is_no_moment_is_refused(workspace: Workspace) -> None:
    for text, said in (
        ("2026-13-01", "no date"),
        ("demo:3", "no release"),
        ("demo:stable", "no release"),
        ("other:1", "no moment"),
        ("", "no moment"),
    ):
        with pytest.raises(UsageError, match=said):
            moment(workspace, text)
    check_known([_row()], moment(workspace, "0.27"))
    with pytest.raises(UsageError, match=r"no measurement belongs to '0.26'") as caught:
        check_known([_row()], moment(workspace, "now"), moment(workspace, "0.26"))
    assert "measurements since 2026-01-01, with TVM 0.27.0.post1" in str(caught.value.hint)

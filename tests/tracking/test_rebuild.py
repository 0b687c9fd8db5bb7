"""Test a store that is lost, damaged or locked: one clear error, and everything restored from artifacts/ and DVC's
cache.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.table import STAGES
from tests.tracking.ledger_bench import LedgerBench
from tvmflow.config.params import Cell
from tvmflow.support.errors import DamagedStoreError, StoreError
from tvmflow.tracking.dvc.chains import follow, records_in_place
from tvmflow.tracking.mlflow import store as store_paths
from tvmflow.tracking.mlflow.history import all_measurements
from tvmflow.tracking.mlflow.rebuild import rebuild
from tvmflow.tracking.mlflow.recorded import ensure_recorded, is_recorded
from tvmflow.tracking.mlflow.registry import CHAMPION, all_aliases, version_by_alias, version_by_sha256
from tvmflow.tracking.mlflow.releases import promote, releases, rollback
from tvmflow.tracking.mlflow.store import open_mlflow

pytestmark = pytest.mark.heavy


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _of_something_else(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text)")


def _overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 200_000)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut to its header": lambda path: os.truncate(path, 100),
    "cut in a page": lambda path: os.truncate(path, path.stat().st_size - 1000),
    "text": lambda path: path.write_text("no database " * 1000),
    "one byte": lambda path: path.write_bytes(b"S"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "overwritten": _overwritten,
    "directory": _directory,
    "something else": _of_something_else,
}
GONE: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "folder": lambda path: shutil.rmtree(path.parent),
}


def commit_to_dvc(ledger: LedgerBench) -> None:
    """Keep every file by its md5, as `dvc commit` does."""
    import hashlib

    for path in ledger.workspace.artifacts.glob("*/*/*"):
        md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        place = ledger.root / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def _fill(ledger: LedgerBench) -> tuple[Cell, Cell]:
    """Three libraries of one cell, one of them measured twice, the second released after the first; another cell beside
    it.
    """
    cell, other = ledger.cell("digits_torch"), ledger.cell("digits_torch", precision="int8")
    for library in ("one", "two", "two", "three"):
        sha256 = ledger.measure(cell, library)["build"].outputs["library.so"].sha256
        commit_to_dvc(ledger)
        if library != "three":
            promote(ledger.workspace, version_by_sha256(ledger.workspace, cell, sha256), f"{library} is good")  # type: ignore[arg-type]
    ledger.measure(other, "small")
    commit_to_dvc(ledger)
    return cell, other


def seen(ledger: LedgerBench, *cells: Cell) -> Any:
    rows = all_measurements(ledger.workspace)
    shown = {
        cell: [{k: v for k, v in row.items() if k not in ("run_id", "experiment_id", "url")} for row in measurements]
        for cell, measurements in rows.items()
    }
    return shown, all_aliases(ledger.workspace), [releases(ledger.workspace, cell) for cell in cells]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_one_error_that_names_it_and_the_way_out(ledger: LedgerBench, damage: str) -> None:
    cell = ledger.cell("digits_torch")
    ledger.make(cell, "one")
    path = ledger.root / "mlruns" / "mlflow.db"
    DAMAGES[damage](path)
    for action in (
        lambda: ensure_recorded(ledger.workspace, cell),
        lambda: all_measurements(ledger.workspace),
        lambda: version_by_alias(ledger.workspace, cell, CHAMPION),
        lambda: rollback(ledger.workspace, cell),
    ):
        with pytest.raises(DamagedStoreError) as caught:
            action()
        assert str(path) in caught.value.found and "init --rebuild" in caught.value.hint
        assert len(str(caught.value)) < 700 and "sqlalche" not in str(caught.value)


def test_everything_is_recorded_again(ledger: LedgerBench) -> None:
    cells = _fill(ledger)
    before, store = seen(ledger, *cells), ledger.root / "mlruns" / "mlflow.db"
    done = rebuild(ledger.workspace, STAGES)
    assert (done.recorded, done.known, done.lost, done.set_aside) == ([], 5, [], ""), "nothing was missing"
    damaged = store.read_bytes()[:5000]
    store.write_bytes(damaged)
    ledger.forget()
    done = rebuild(ledger.workspace, STAGES)
    assert len(done.recorded) == 5 and done.lost == [] and done.champions == ["digits_torch.local-cpu.float32"]
    assert Path(done.set_aside).read_bytes() == damaged, "nobody's file is deleted"
    assert seen(ledger, *cells) == before
    assert all(is_recorded(ledger.workspace, cell) for cell in cells)
    assert rebuild(ledger.workspace, STAGES).recorded == []
    now, _ = rollback(ledger.workspace, cells[0])
    assert now.version == "1"


@pytest.mark.parametrize("loss", GONE)
def test_a_store_that_is_gone_is_noticed_and_the_cell_recorded_again(ledger: LedgerBench, loss: str) -> None:
    cell = ledger.cell("digits_torch")
    ledger.measure(cell, "one")
    before = seen(ledger, cell)
    GONE[loss](ledger.root / "mlruns" / "mlflow.db")
    ledger.forget()
    assert not is_recorded(ledger.workspace, cell)
    ensure_recorded(ledger.workspace, cell)
    assert is_recorded(ledger.workspace, cell) and seen(ledger, cell) == before


def test_what_was_deleted_in_mlflow_is_recorded_again_and_what_is_there_is_not_doubled(ledger: LedgerBench) -> None:
    cell = ledger.cell("digits_torch")
    ledger.measure(cell, "one")
    marker = next((ledger.workspace.artifacts / ".recorded").glob("*.json"))
    for text in ("", "[]", '{"runs": {"mlruns/mlflow.db": "no such run"}}', None):
        _ = marker.unlink() if text is None else marker.write_text(text)
        assert is_recorded(ledger.workspace, cell), "the store is asked, not the marker"
        ensure_recorded(ledger.workspace, cell)
        assert len(all_measurements(ledger.workspace)[str(cell)]) == 1
    [row] = all_measurements(ledger.workspace)[str(cell)]
    open_mlflow(ledger.workspace).delete_run(row["run_id"])
    assert not is_recorded(ledger.workspace, cell)
    ensure_recorded(ledger.workspace, cell)
    assert len(all_measurements(ledger.workspace)[str(cell)]) == 1


def test_what_cannot_be_recorded_again_is_named_and_stops_nothing(ledger: LedgerBench) -> None:
    cells = _fill(ledger)
    (ledger.root / "mlruns" / "mlflow.db").unlink()
    ledger.forget()
    shutil.rmtree(ledger.root / ".dvc")
    done = rebuild(ledger.workspace, STAGES)
    assert len(done.recorded) == 2, "what lies in the folders"
    assert rebuild(ledger.workspace, STAGES).recorded == []
    assert set(all_measurements(ledger.workspace)) == {str(cell) for cell in cells}


def test_a_locked_store_is_waited_for_and_then_named(ledger: LedgerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_paths, "LOCK_WAIT_S", 0.2)
    cell = ledger.cell("digits_torch")
    ledger.make(cell, "one")
    path = ledger.root / "mlruns" / "mlflow.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="locked by another process") as caught:
        ensure_recorded(ledger.workspace, cell)
    assert str(path) in caught.value.found and not isinstance(caught.value, DamagedStoreError)
    with pytest.raises(StoreError, match="locked"):
        rebuild(ledger.workspace, STAGES)
    other.execute("ROLLBACK")
    other.close()
    ensure_recorded(ledger.workspace, cell)
    assert is_recorded(ledger.workspace, cell)


def test_a_store_that_is_not_there_any_more_as_an_address(ledger: LedgerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = ledger.cell("digits_torch")
    for uri in ("http://127.0.0.1:9", "nonsense://x", f"file://{ledger.root}/old"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with pytest.raises(StoreError) as caught:
            version_by_alias(ledger.workspace, cell, CHAMPION)
        assert uri in caught.value.found and len(str(caught.value)) < 700


def test_records_of_an_earlier_version_are_followed_too(ledger: LedgerBench) -> None:
    """Its stages read other files than they do now."""
    cell = ledger.cell("digits_torch")
    ledger.measure(cell, "any")
    records = records_in_place(ledger.workspace, cell)
    [measured] = records["evaluate"]
    build = records["build"][-1]
    for names in (["library.so"], ["library.so", "manifest.json", "network.so"], None):
        inputs = {
            **measured.recipe["inputs"],
            "build": build.digest(names and [n for n in names if n in build.outputs]),
        }
        chain: dict[str, Any] = {}
        follow(STAGES, records, replace(measured, recipe={**measured.recipe, "inputs": inputs}), chain)
        assert chain["build"] is build and set(chain) >= {"fetch", "import_model", "quantize", "tune", "graph_pack"}
    chain = {}
    follow(STAGES, records, replace(measured, recipe={**measured.recipe, "inputs": {"build": "0" * 64}}), chain)
    assert chain == {}

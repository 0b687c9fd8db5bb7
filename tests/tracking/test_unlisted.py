"""Test that DVC also versions cells that are not under `cells:`, with DVC itself."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import yaml

from flows.pipeline import render
from tests.conftest import REPOSITORY
from tests.tracking.ledger_bench import LedgerBench
from tvmflow.config.params import STAGE_NAMES
from tvmflow.support.errors import StoreError
from tvmflow.support.files import describe_file
from tvmflow.tracking.dvc import repository as dvc
from tvmflow.tracking.dvc import unlisted

pytestmark = pytest.mark.heavy


def _dvc(ledger: LedgerBench, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=ledger.root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _prepare(ledger: LedgerBench) -> None:
    """Put the code beside params.yaml, where a clone has it: DVC's stages depend on it."""
    for name in ("tasks", "tvmflow"):
        shutil.copytree(REPOSITORY / name, ledger.root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (ledger.root / "dvc.yaml").write_text(render())
    path = ledger.root / "params.yaml"
    path.write_text(path.read_text().replace("push_to_remote: true", "push_to_remote: false"))
    dvc.initialize(ledger.workspace)


def test_an_unlisted_cell_is_versioned_and_moves_over_when_it_is_listed(ledger: LedgerBench) -> None:
    _prepare(ledger)
    listed, other = ledger.cell("digits_torch"), ledger.cell("digits_torch", precision="int8")
    for cell in (listed, other):
        ledger.make(cell, f"library of {cell}")
        log = ledger.workspace.tuning_log(cell)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("{}\n")
        assert not dvc.is_published(ledger.workspace, cell)
    dvc.publish(ledger.workspace, [listed, other], STAGE_NAMES)
    for cell in (listed, other):
        assert dvc.is_published(ledger.workspace, cell)
        library = describe_file(ledger.workspace.folder("build", cell) / "library.so")
        dvc.file_by_md5(ledger.workspace, library.md5, library.sha256, ledger.root / "found.so")
    assert set(yaml.safe_load((ledger.root / "unlisted" / "dvc.lock").read_text())["stages"]) == {
        f"{stage}@{other.slug}" for stage in STAGE_NAMES
    }
    shutil.rmtree(ledger.workspace.folder("build", other))
    _dvc(ledger, "checkout", "unlisted/dvc.yaml")
    assert (ledger.workspace.folder("build", other) / "library.so").read_text() == f"library of {other}"

    params = yaml.safe_load((ledger.root / "params.yaml").read_text())
    params["cells"]["digits-int8"] = {"model": "digits_torch", "target": "local-cpu", "precision": "int8"}
    (ledger.root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    assert not dvc.is_published(ledger.workspace, other) and dvc.is_published(ledger.workspace, listed)
    dvc.publish(ledger.workspace, [other], STAGE_NAMES)
    assert dvc.is_published(ledger.workspace, other) and not (ledger.root / "unlisted").exists()
    assert "build@digits-int8" in yaml.safe_load((ledger.root / "dvc.lock").read_text())["stages"]
    assert "build@digits-int8" in _dvc(ledger, "stage", "list"), "no output belongs to two stages"


@pytest.mark.parametrize("text", ["", "[]", "stages: 3", "stages: {build: {do: {}, foreach: {x: {model: y}}}}", "\x00"])
def test_a_damaged_list_is_one_error(ledger: LedgerBench, text: str) -> None:
    (ledger.root / "dvc.yaml").write_text(render())
    cell = ledger.cell("digits_torch", precision="int8")
    unlisted.keep(ledger.workspace, [cell])
    path = ledger.root / "unlisted" / "dvc.yaml"
    good = path.read_text()
    path.write_text(text)
    with pytest.raises(StoreError, match=r"unlisted/dvc\.yaml is damaged"):
        unlisted.keep(ledger.workspace, [ledger.cell("digits_keras", precision="int8")])
    path.write_text(good)
    unlisted.keep(ledger.workspace, [])
    assert path.read_text() == good, "what was run stays"

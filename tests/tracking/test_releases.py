"""Test champions: random promotions, rollbacks and new libraries of many cells against a plain model, and evidence."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.tracking.ledger_bench import LedgerBench
from tvmflow.config.params import Cell
from tvmflow.support.errors import StoreError
from tvmflow.tracking.mlflow import releases
from tvmflow.tracking.mlflow.history import all_measurements
from tvmflow.tracking.mlflow.registry import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    all_aliases,
    registry_name,
    version_by_alias,
    version_by_sha256,
)
from tvmflow.tracking.mlflow.releases import promote, rollback
from tvmflow.tracking.mlflow.store import open_mlflow

pytestmark = pytest.mark.heavy

ALIASES = (CHAMPION, CHALLENGER, PREVIOUS)


class Plain:
    """What should be released of one cell, in a few lines: libraries by their text."""

    def __init__(self) -> None:
        self.champion: str | None = None
        self.previous: str | None = None
        self.challenger: str | None = None
        self.newest: str | None = None
        self.trail: list[tuple[str, str]] = []

    def measure(self, library: str) -> None:
        self.newest = library
        if library != self.champion:
            self.challenger = library

    def promote(self) -> None:
        if self.newest is not None and self.newest != self.champion:
            self.previous = self.champion or self.previous
            self.champion = self.newest
            self.challenger = None if self.challenger == self.newest else self.challenger
            self.trail.append(("promote", self.newest))

    def rollback(self) -> bool:
        if self.champion is None or self.previous is None:
            return False
        self.champion, self.previous = self.previous, self.champion
        self.challenger = None if self.challenger == self.champion else self.challenger
        self.trail.append(("rollback", self.champion))
        return True


def _newest(ledger: LedgerBench, cell: Cell, sha256: str) -> Any:
    version = version_by_sha256(ledger.workspace, cell, sha256)
    assert version is not None
    return version


def _assert_is(ledger: LedgerBench, cell: Cell, plain: Plain, shas: dict[str, str]) -> None:
    client = open_mlflow(ledger.workspace)
    numbers = {
        v.tags["library_sha256"]: str(v.version)
        for v in client.search_model_versions(f"name = '{registry_name(cell)}'")
    }
    wanted = {alias: numbers[shas[library]] for alias in ALIASES if (library := getattr(plain, alias)) is not None}
    assert all_aliases(ledger.workspace).get(registry_name(cell), {}) == wanted, cell
    trail = releases.releases(ledger.workspace, cell)
    assert [(entry.what, entry.version) for entry in trail] == [(what, numbers[shas[x]]) for what, x in plain.trail]
    assert all(entry.done for entry in trail)


@pytest.mark.parametrize("seed", range(3))
def test_champions_are_what_a_plain_model_says(ledger: LedgerBench, seed: int) -> None:
    choose = random.Random(seed)
    models, targets = ("digits_torch", "digits_keras"), ("local-cpu", "rk3399")
    cells = [ledger.cell(*row) for row in itertools.product(models, targets, ("float32", "int8"))]
    cells = [*choose.sample(cells, 4), ledger.cell("digits_torch", "local-cpu", "float16_acc32")]
    plain, shas = {cell: Plain() for cell in cells}, dict[str, str]()
    for _ in range(25):
        cell = choose.choice(cells)
        model = plain[cell]
        action = choose.choice(("measure", "measure", "promote", "promote", "rollback"))
        if action == "measure":
            library = f"{cell.slug if choose.random() < 0.5 else 'shared'} {choose.randrange(4)}"
            shas[library] = ledger.register(cell, library)
            model.measure(library)
        elif action == "promote" and model.newest is not None:
            promote(ledger.workspace, _newest(ledger, cell, shas[model.newest]), "asked for")
            model.promote()
        elif action == "rollback":
            if model.rollback():
                now, _before = rollback(ledger.workspace, cell)
                assert model.champion is not None and now.sha256 == shas[model.champion]
            else:
                with pytest.raises(StoreError, match="no previous champion"):
                    rollback(ledger.workspace, cell)
        _assert_is(ledger, cell, model, shas)
    for cell in cells:  # whatever was done to one, the others are as they were left
        _assert_is(ledger, cell, plain[cell], shas)
    assert set(all_aliases(ledger.workspace)) == {registry_name(cell) for cell in cells if plain[cell].newest}


def test_a_library_that_is_recorded_late_does_not_ask_to_replace_a_newer_one(ledger: LedgerBench) -> None:
    cell = ledger.cell("digits_torch")
    ledger.minute = 10
    newer = ledger.measure(cell, "newer")
    ledger.minute = 0
    ledger.measure(cell, "older")
    challenger = version_by_alias(ledger.workspace, cell, CHALLENGER)
    assert challenger is not None and challenger.sha256 == newer["build"].outputs["library.so"].sha256
    rows = all_measurements(ledger.workspace)[str(cell)]
    assert [row["version"] for row in rows] == ["2", "1 challenger"], "oldest first"


@pytest.mark.parametrize("cut", range(1, 7))
def test_a_change_that_is_cut_off_is_finished_by_the_same_command(
    ledger: LedgerBench,
    monkeypatch: pytest.MonkeyPatch,
    cut: int,
) -> None:
    """One alias after the other; the libraries one, two and three, and three promotions, then a rollback, each cut off
    once.
    """
    cell, plain, shas = ledger.cell("digits_torch"), Plain(), dict[str, str]()
    for library in ("one", "two", "three"):
        shas[library] = ledger.register(cell, library)
        newest = _newest(ledger, cell, shas[library])
        plain.measure(library)
        with _calls_until(monkeypatch, cut), pytest.raises(_CutError):
            promote(ledger.workspace, newest, "")
            raise _CutError  # there are fewer calls than that
        promote(ledger.workspace, newest, "")
        plain.promote()
        _assert_is(ledger, cell, plain, shas)
    with _calls_until(monkeypatch, cut), pytest.raises(_CutError):
        rollback(ledger.workspace, cell)
        raise _CutError
    if cut <= 4:  # of four calls: the trail, two aliases, the trail
        now, before = rollback(ledger.workspace, cell)
        assert (now.sha256, before.sha256) == (shas["two"], shas["three"])
    plain.rollback()
    _assert_is(ledger, cell, plain, shas)


class _CutError(Exception):
    pass


class _calls_until:
    """Let MLflow's client change the registry this many times less one, then fail as a killed process would."""

    NAMES = (
        "set_registered_model_tag",
        "set_registered_model_alias",
        "delete_registered_model_alias",
        "create_model_version",
        "create_registered_model",
        "delete_registered_model",
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
        self.patch, self.left = monkeypatch, cut

    def __enter__(self) -> None:
        from mlflow import MlflowClient

        self.context = self.patch.context()
        patch = self.context.__enter__()
        for name in self.NAMES:
            patch.setattr(MlflowClient, name, self._counted(getattr(MlflowClient, name)))

    def _counted(self, real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left <= 0:
                raise _CutError
            return real(*arguments, **named)

        return call

    def __exit__(self, *_rest: object) -> None:
        self.context.__exit__(None, None, None)


# -- registries of before
# ------------------------------------------------------------------------------------------------


def _lines(root: Path) -> list[dict[str, Any]]:
    path = root / "artifacts" / ".recorded" / "releases.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_each_change_has_its_evidence_as_a_file(ledger: LedgerBench) -> None:
    """Of any length, named by its digest; a rollback too. What was cut off is in the list of changes once it is
    finished.
    """
    cell = ledger.cell("digits_torch")
    for library in ("one", "two"):
        sha256 = ledger.register(cell, library)
        promote(ledger.workspace, _newest(ledger, cell, sha256), "asked for", {"rounds": list(range(1000))})
    rollback(ledger.workspace, cell)
    trail = releases.releases(ledger.workspace, cell)
    assert [entry.what for entry in trail] == ["promote", "promote", "rollback"]
    client = open_mlflow(ledger.workspace)
    for entry in trail:
        assert entry.evidence is not None
        data = releases.evidence_path(ledger.workspace, entry.evidence).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry.evidence
        evidence = json.loads(data)
        assert (evidence["what"], evidence["version"], evidence["before"]) == (entry.what, entry.version, entry.before)
        assert evidence["evidence"] == ({} if entry.what == "rollback" else {"rounds": list(range(1000))})
        run = client.get_model_version(registry_name(cell), entry.version).run_id
        assert f"releases/{entry.evidence}.json" in [one.path for one in client.list_artifacts(run, "releases")]
    assert [line["evidence"] for line in _lines(ledger.root)] == [entry.evidence for entry in trail]


def test_a_change_that_was_cut_off_is_in_the_list_once_it_is_finished(
    ledger: LedgerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = ledger.cell("digits_torch")
    newest = _newest(ledger, cell, ledger.register(cell, "one"))
    with _calls_until(monkeypatch, 2), pytest.raises(_CutError):
        promote(ledger.workspace, newest, "")
    assert _lines(ledger.root) == []
    for _ in range(2):
        promote(ledger.workspace, newest, "")
        assert [line["sha256"] for line in _lines(ledger.root)] == [newest.sha256]

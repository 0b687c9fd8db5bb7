"""What a re-tune decides about candidates, in the registry: refused, proposed, accepted, out of date."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tasks.table import STAGES
from tests.tracking.ledger_bench import LedgerBench
from tvmflow.cli.app import app
from tvmflow.config.params import Cell
from tvmflow.support.errors import StoreError, UsageError
from tvmflow.tracking.mlflow.champions import champions, records_of
from tvmflow.tracking.mlflow.proposals import (
    REFUSED,
    Judgement,
    accept,
    judged_before,
    keep_proposal,
    keep_refusal,
    proposals,
    reject,
)
from tvmflow.tracking.mlflow.registry import CHAMPION, PROPOSAL, Version, version_by_alias, version_by_sha256
from tvmflow.tracking.mlflow.releases import promote, releases

pytestmark = pytest.mark.heavy


def _version(ledger: LedgerBench, cell: Cell, library: str) -> Version:
    version = version_by_sha256(ledger.workspace, cell, ledger.register(cell, library))
    assert version is not None
    return version


def _again(ledger: LedgerBench, cell: Cell, version: Version) -> Version:
    known = version_by_sha256(ledger.workspace, cell, version.sha256)
    assert known is not None
    return known


def test_a_proposal_waits_and_is_accepted_without_a_measurement(ledger: LedgerBench) -> None:
    cell, workspace = ledger.cell("digits_torch"), ledger.workspace
    assert proposals(workspace) == []
    old, new = _version(ledger, cell, "old"), _version(ledger, cell, "new")
    promote(workspace, old, "the first")
    evidence = {"comparison": {"ratio": 0.9}}
    keep_proposal(workspace, new, Judgement(old.version, "recipe", "it is faster", evidence=evidence))
    [one] = proposals(workspace)
    assert (one.name, one.version, one.judgement.text) == (cell.slug, new.version, "it is faster")
    assert one.judgement.when.startswith("20")
    now, text = accept(workspace, cell)
    assert now.version == new.version and "it is faster" in text
    champion = version_by_alias(workspace, cell, CHAMPION)
    assert champion is not None and champion.version == new.version
    assert version_by_alias(workspace, cell, PROPOSAL) is None and proposals(workspace) == []
    kept = releases(workspace, cell)[-1]
    assert kept.what == "promote" and kept.evidence is not None
    proof = json.loads((workspace.artifacts / ".recorded" / "evidence" / f"{kept.evidence}.json").read_text())
    assert proof["evidence"]["comparison"] == evidence["comparison"]
    with pytest.raises(StoreError, match="has no proposal"):
        accept(workspace, cell)


def test_a_proposal_beside_an_earlier_champion_is_out_of_date(ledger: LedgerBench) -> None:
    cell, workspace = ledger.cell("digits_torch"), ledger.workspace
    old, new, other = (_version(ledger, cell, library) for library in ("old", "new", "other"))
    promote(workspace, old, "the first")
    keep_proposal(workspace, new, Judgement(old.version, "recipe", "it is faster"))
    promote(workspace, other, "by hand")
    assert proposals(workspace) == []
    with pytest.raises(StoreError, match="was compared with version 1, and the champion is version 3 now"):
        accept(workspace, cell)


def test_a_rejected_proposal_is_not_proposed_again(ledger: LedgerBench) -> None:
    cell, workspace = ledger.cell("digits_torch"), ledger.workspace
    old, new = _version(ledger, cell, "old"), _version(ledger, cell, "new")
    promote(workspace, old, "the first")
    keep_proposal(workspace, new, Judgement(old.version, "recipe", "it is faster"))
    for options in (["--reject", "why", "--proposal"], ["--reject", "why", "--dry-run"], ["--reject", " "]):
        wrong = CliRunner().invoke(app, ["--root", str(ledger.root), "promote", str(cell), *options])
        assert isinstance(wrong.exception, UsageError), options
    done = CliRunner().invoke(app, ["--root", str(ledger.root), "promote", str(cell), "--reject", "it flickers"])
    assert done.exit_code == 0 and f"version {new.version} is rejected" in done.stdout, done.output
    champion = version_by_alias(workspace, cell, CHAMPION)
    assert champion is not None and champion.version == old.version and proposals(workspace) == []
    found = judged_before(_again(ledger, cell, new), old, "recipe")
    assert found is not None and (found[0], found[1].text) == (REFUSED, "rejected: it flickers")
    assert judged_before(_again(ledger, cell, new), old, "another recipe") is None, "a change is judged again"
    for again in (lambda: reject(workspace, cell, "twice"), lambda: accept(workspace, cell)):
        with pytest.raises(StoreError, match="has no proposal"):
            again()


def test_a_judgement_holds_until_recipe_or_champion_change(ledger: LedgerBench) -> None:
    cell, workspace = ledger.cell("digits_torch"), ledger.workspace
    old, new = _version(ledger, cell, "old"), _version(ledger, cell, "new")
    assert judged_before(new, old, "recipe") is None
    keep_proposal(workspace, new, Judgement(old.version, "before", "fast"))
    keep_refusal(workspace, new, Judgement(old.version, "recipe", "slower"))
    assert proposals(workspace) == [], "what was refused later is no proposal"
    known = _again(ledger, cell, new)
    found = judged_before(known, old, "recipe")
    assert found is not None and (found[0], found[1].text) == (REFUSED, "slower")
    assert judged_before(known, old, "another recipe") is None and judged_before(known, new, "recipe") is None
    keep_refusal(workspace, new, Judgement(old.version, "recipe", "x" * 100_000, evidence={"long": "y" * 100_000}))
    assert judged_before(_again(ledger, cell, new), old, "recipe") is not None, "the tag is short enough to be kept"


def test_every_champion_is_listed_with_its_records(ledger: LedgerBench) -> None:
    listed, unlisted = ledger.cell("digits_torch"), ledger.cell("digits_keras", "rk3399", "int8")
    removed = ledger.cell("removed")
    made = ledger.measure(unlisted, "unlisted")
    for cell, version in (
        (listed, _version(ledger, listed, "a")),
        (unlisted, _again(ledger, unlisted, _version_of(ledger, unlisted, made["build"].outputs["library.so"].sha256))),
        (removed, _version(ledger, removed, "c")),
    ):
        promote(ledger.workspace, version, f"of {cell}")
    found = {one.name: one for one in champions(ledger.workspace)}
    assert {name: (one.cell, one.is_listed) for name, one in found.items()} == {
        listed.slug: (listed, True),
        unlisted.slug: (unlisted, False),
        removed.slug: (None, False),
    }
    champion = found[unlisted.slug].version
    here = records_of(ledger.workspace, unlisted, champion, STAGES)
    assert here == made
    ledger.make(unlisted, "newer")  # the folders have another library now
    there = records_of(ledger.workspace, unlisted, champion, STAGES)
    made.pop("deploy")  # never cached, so not recorded
    assert {name: record.key for name, record in there.items()} == {name: record.key for name, record in made.items()}
    assert there["build"].outputs["library.so"] == made["build"].outputs["library.so"]
    assert records_of(ledger.workspace, listed, found[listed.slug].version, STAGES) == {}, "it has no files"


def _version_of(ledger: LedgerBench, cell: Cell, sha256: str) -> Version:
    version = version_by_sha256(ledger.workspace, cell, sha256)
    assert version is not None
    return version

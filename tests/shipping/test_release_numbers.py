"""Test that clones which share a DVC remote never give one version number to two bundles of an app."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.bundle_parts import CELL
from tvmflow.config.params import AppEntry
from tvmflow.config.workspace import Workspace
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.release_app import Order, release_app
from tvmflow.support.errors import StoreError
from tvmflow.tracking.app_releases import claim_number, read_releases


def test_two_clones_never_give_one_number_to_two_bundles(part: Part, tmp_path: Path) -> None:
    """They share a DVC remote, and release at once; the files in git are merged later."""
    clones = []
    for name in ("one", "two", "three"):
        root = tmp_path / name
        (root / ".dvc").mkdir(parents=True)
        (root / "params.yaml").write_text("models: {}\n")
        (root / "dvc.yaml").write_text("stages: {}\n")
        text = f"[core]\n no_scm = True\n remote = shared\n['remote \"shared\"']\n url = {tmp_path / 'shared'}\n"
        (root / ".dvc" / "config").write_text(text)
        clones.append(Workspace(root))

    def claim(number: int) -> str:
        try:
            claim_number(clones[number], "demo", 1, f"{number}" * 64)
        except StoreError as error:
            return f"{error.found}; {error.hint}"
        return ""

    (tmp_path / "shared").mkdir()
    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(claim, range(3)))
    [first] = (number for number, error in enumerate(said) if not error)
    others = [number for number in range(3) if number != first]
    for other in others:
        assert "version 1 of demo is the bundle of another clone" in said[other] and "git pull" in said[other]
        with pytest.raises(StoreError, match="of another clone"):
            release_app(clones[other], Order("demo", AppEntry(cells=(CELL,)), [part]), lambda _step: None)
        assert read_releases(clones[other], "demo").versions == ()
    claim_number(clones[others[0]], "demo", 1, f"{first}" * 64)  # the same bundle
    claim_number(clones[first], "demo", 1, "e" * 64)  # killed before it was in the file
    claim_number(clones[others[0]], "demo", 2, "e" * 64)  # after git pull

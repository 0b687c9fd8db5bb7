"""Test that a run does what `--dry-run` printed, whatever was built, changed, damaged or lost before."""

from __future__ import annotations

import random
import shutil

import pytest

from tests.pipeline.test_store import Bench, bench  # noqa: F401  (a fixture)
from tvmflow.pipeline.store import Plan

pytestmark = pytest.mark.heavy


def _foreseen(bench: Bench) -> dict[str, str]:  # noqa: F811
    plans = {}
    for plan in bench.store.foresee(bench.cell):
        if isinstance(plan, Plan):
            plans[plan.stage.name] = "hit" if plan.is_hit else "restored" if plan.restorable is not None else "made"
    return plans


def _damage(bench: Bench, chance: random.Random) -> None:  # noqa: F811
    stage = chance.choice(["fetch", "import_model"])
    cell = chance.choice([bench.cell, bench.other])
    folder = bench.folder(stage, cell)
    what = chance.choice(["seed", "remove", "alter", "record", "index", "other"])
    files = [path for path in folder.rglob("*") if path.is_file()]
    if what == "seed":
        bench.set_seed(chance.choice([3, 4, 5]))
    elif what == "other":
        for name in ("fetch", "import_model"):
            bench.ensure(name, bench.other)
    elif what == "remove":
        shutil.rmtree(folder, ignore_errors=True)
    elif what == "alter" and files:
        chance.choice(files).write_text("altered")
    elif what == "record" and (folder / "record.json").exists():
        (folder / "record.json").unlink()
    elif what == "index":
        shutil.rmtree(bench.root / "artifacts" / ".index" / stage, ignore_errors=True)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_foreseen_happens(bench: Bench, seed: int) -> None:  # noqa: F811
    chance = random.Random(seed)
    seen = set()
    for _ in range(12):
        for _ in range(chance.randint(0, 3)):
            _damage(bench, chance)
        said = _foreseen(bench)
        assert "fetch" in said, "the first stage waits for nothing"
        for name in ("fetch", "import_model"):
            happened = bench.ensure(name)
            assert said.get(name, happened) == happened
            if name not in said:
                assert said["fetch"] == "made", "only a stage after one that has to be made may be undecided"
            seen.add(happened)
    assert "made" in seen and len(seen) > 1

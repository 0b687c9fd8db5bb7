"""Test that a clone finds by recipe keys what another one made, in the DVC remote, at other paths, without a pull."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tasks.table import STAGES as REAL_STAGES
from tests.pipeline.fake_stages import STAGES as FAKE_STAGES
from tests.pipeline.test_store import Bench
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.store import Store
from tvmflow.tracking.dvc import recipe_entries, remote, repository
from tvmflow.tracking.dvc.remote_recipes import bring

STAGES = {**FAKE_STAGES, "tune": replace(FAKE_STAGES["import_model"], name="tune", keeps_log=True)}
MADE = ("fetch", "import_model", "tune")


class Desk(Bench):
    """A workspace whose remote is shared. said: what `bring` said."""

    def __init__(self, root: Path, shared: Path | str) -> None:
        super().__init__(root)
        self.store, self.said = Store(self.workspace, STAGES), list[str]()
        outs = [f"artifacts/{stage}/{self.cell.slug}" for stage in MADE]
        log = f"artifacts/tuning_log/{self.cell.slug}.jsonl"
        (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"all": {"cmd": "true", "outs": [*outs, log]}}}))
        repository.initialize(self.workspace)
        config = root / ".dvc" / "config"
        config.write_text(config.read_text().replace("../dvc_storage", str(shared)))

    def make_all(self) -> list[str]:
        return [self.ensure(stage) for stage in MADE]

    def publish(self, push: bool = True) -> None:
        log = self.workspace.tuning_log(self.cell)
        log.parent.mkdir(exist_ok=True)
        log.write_text("measured\n")
        entries = recipe_entries.entries_of(self.workspace, self.cell, MADE)
        assert repository.commit(self.workspace, {"a": ["all"]}, push, entries={"a": entries}) == {}

    def bring(self) -> int:
        self.said.clear()
        return bring(self.workspace, [self.cell, self.other], STAGES, self.said.append).stages


@pytest.fixture
def desks(make_workspace: Callable[..., Path], tmp_path: Path) -> tuple[Desk, Desk]:
    return tuple(Desk(make_workspace(name=name), tmp_path / "shared") for name in ("first", "another home"))  # type: ignore[return-value]


def test_a_clone_restores_what_a_deleted_one_made(desks: tuple[Desk, Desk], tmp_path: Path) -> None:
    first, second = desks
    assert second.bring() == 0 and "is away: there is no folder" in second.said[0], (
        "a folder that is not mounted is told"
    )
    assert first.make_all() == ["made"] * 3
    first.publish(push=False)
    assert not (tmp_path / "shared").exists()
    first.publish()
    shutil.rmtree(first.root)
    assert second.bring() == 3, "two cells share the keys: their files come once"
    assert "3 stages" in second.said[0]
    assert second.make_all() == ["restored"] * 3 and second.calls() == []
    assert second.workspace.tuning_log(second.cell).read_text() == "measured\n", "not versioned as an empty log"
    assert second.bring() == 0 and second.said == [], "nothing is asked for twice"


def test_what_cannot_be_trusted_is_made_again(
    desks: tuple[Desk, Desk], make_workspace: Callable[..., Path], tmp_path: Path
) -> None:
    first, shared = desks[0], tmp_path / "shared"
    first.set_seed(3)
    first.make_all()
    first.publish()
    [entry] = (shared / "recipes" / "import_model").iterdir()
    [other] = (shared / "recipes" / "fetch").iterdir()
    md5s = json.loads(entry.read_text())["record"], first.store.record_of("tune", first.cell).outputs["double.txt"].md5
    record, output = (shared / "files" / "md5" / md5[:2] / md5[2:] for md5 in md5s)
    damages: dict[str, Callable[[], object]] = {
        "entry": lambda: entry.write_text("[1"),
        "record": lambda: record.write_text(record.read_text().replace('"double.txt"', '"../double.txt"')),
        "output": lambda: output.write_text("7"),
        "gone": output.unlink,  # dvc gc
        "another stage": lambda: shutil.copyfile(other, entry),
    }
    for name, damage in damages.items():
        second = Desk(make_workspace(name=name), shared)
        second.set_seed(3)
        kept = {path: path.read_bytes() for path in (entry, record, output)}
        for path in kept:
            path.chmod(0o644)
        damage()
        assert second.bring() == 1, f"{name}: the stage before"
        assert second.make_all()[:2] == ["restored", "made"] and second.calls()[:1] == ["import_model"]
        assert not list((second.root / ".dvc" / "cache").rglob(".brought-*"))
        for path, content in kept.items():
            path.write_bytes(content)


def test_a_remote_that_does_not_answer_costs_a_line(desks: tuple[Desk, Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desks[0]
    config = desk.root / ".dvc" / "config"
    text = config.read_text()
    config.write_text(text.replace("url = ", "url = http://127.0.0.1:1/"))
    started = time.monotonic()
    assert desk.bring() == 0 and len(desk.said) == 1 and "made again" in desk.said[0]
    monkeypatch.setattr(remote, "_ANSWER_S", 0.01)
    monkeypatch.setattr("dvc.fs.get_cloud_fs", lambda *_args, **_kinds: time.sleep(1.0))
    assert desk.bring() == 0 and "did not answer in 0.01 s" in desk.said[0]
    assert time.monotonic() - started < 10.0
    config.write_text("[core]\n    no_scm = True\n")
    assert desk.bring() == 0 and desk.said == [], "no remote: nothing is asked"


def test_a_clone_of_a_finished_workspace_restores_all_stages(finished: Path, tmp_path: Path) -> None:
    """DVC's files are not pulled, and dvc.lock is not committed: the recipe keys are enough."""
    root = tmp_path / "elsewhere" / "clone"
    subprocess.run(["git", "clone", "-q", str(finished), str(root)], check=True)
    shutil.copytree(finished / "dvc_storage", tmp_path / "shared")
    workspace = Workspace(root)
    repository.initialize(workspace)
    config = root / ".dvc" / "config"
    config.write_text(config.read_text().replace("../dvc_storage", str(tmp_path / "shared")))
    cell, said = workspace.params.cell("digits"), list[str]()
    assert bring(workspace, [cell], REAL_STAGES, said.append).stages == len(REAL_STAGES), said
    cached = [name for name, stage in REAL_STAGES.items() if stage.is_cached]
    store, first = Store(workspace, REAL_STAGES), Store(Workspace(finished), REAL_STAGES)
    assert [store.ensure(name, cell)[1] for name in cached] == ["restored"] * len(cached)
    store.restore_skipped("deploy", cell)
    assert store.record_of("deploy", cell) == first.record_of("deploy", cell), "DVC would miss it"
    log = Workspace(finished).tuning_log(cell).read_bytes()
    assert log and workspace.tuning_log(cell).read_bytes() == log

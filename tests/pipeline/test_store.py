"""Test the store: skipped and restored stages, and its state after a crash, a fault or a concurrent process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY
from tests.pipeline.fake_stages import STAGES
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME, read_record
from tvmflow.pipeline.stage import StageContext
from tvmflow.pipeline.store import Plan, Store
from tvmflow.support.errors import StageError, StoreError, UsageError
from tvmflow.support.files import describe_file


class Bench:
    def __init__(self, root: Path) -> None:
        self.root, self.workspace = root, Workspace(root)
        self.store = Store(self.workspace, STAGES)
        self.cell = self.workspace.params.cell("digits")
        self.other = self.workspace.params.cell("digits-keras")

    def ensure(self, stage: str, cell: Cell | None = None) -> str:
        return self.store.ensure(stage, cell or self.cell)[1]

    def calls(self) -> list[str]:
        path = self.root / "calls.txt"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def folder(self, stage: str, cell: Cell | None = None) -> Path:
        return self.workspace.folder(stage, cell or self.cell)

    def set_seed(self, seed: int) -> None:
        params = yaml.safe_load((self.root / "params.yaml").read_text())
        params["fetch"]["split_seed"] = seed
        (self.root / "params.yaml").write_text(yaml.safe_dump(params) + " " * seed)

    def start(self, stage: str, name: str = "digits") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.fake_stages", str(self.root), stage, name],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, pattern: str) -> Path:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            paths = list(self.root.glob(pattern))
            if paths:
                return paths[0]
            time.sleep(0.02)
        raise AssertionError(f"no {pattern}")


@pytest.fixture
def bench(make_workspace: Callable[..., Path]) -> Bench:
    return Bench(make_workspace())


def test_made_once_then_hit(bench: Bench) -> None:
    assert [bench.ensure(s) for s in ("fetch", "import_model", "fetch", "import_model")] == [
        "made",
        "made",
        "hit",
        "hit",
    ]
    assert bench.calls() == ["fetch", "import_model"]


def test_a_record_of_someone_without_the_secret_is_not_used(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a secret a forged digest is believed: the key protects from accidents only."""
    record = bench.folder("fetch") / RECORD_NAME

    def forge(text: str) -> None:
        (bench.folder("fetch") / "deep" / "number.txt").write_text("666")
        data = json.loads(record.read_text())
        data["outputs"]["deep/number.txt"] = vars(describe_file(bench.folder("fetch") / "deep" / "number.txt"))
        record.write_text(json.dumps(data | json.loads(text), sort_keys=True, indent=1))
        shutil.rmtree(bench.workspace.artifacts / ".index")

    bench.ensure("fetch")
    forge("{}")
    assert bench.ensure("fetch") == "hit"
    monkeypatch.setenv("TVMFLOW_RECORDS_SECRET", "s" * 32)
    assert bench.ensure("fetch") == "made", "it was not signed"
    assert bench.ensure("fetch") == "hit" and bench.ensure("import_model") == "made"
    for text in ("{}", '{"hmac": null}', '{"hmac": "%s"}' % ("0" * 64)):
        forge(text)
        assert bench.ensure("fetch") == "made"
    monkeypatch.setenv("TVMFLOW_RECORDS_SECRET", "t" * 32)
    assert bench.ensure("fetch") == "made"
    monkeypatch.setenv("TVMFLOW_RECORDS_SECRET", "short")
    with pytest.raises(UsageError, match="has 5 characters"):
        bench.ensure("fetch")


def test_a_record_of_a_known_key_is_read_without_its_recipe(bench: Bench) -> None:
    bench.ensure("fetch")
    path = bench.folder("fetch") / RECORD_NAME
    whole, text = read_record(path), path.read_text()
    known = (whole.key, whole.recipe)
    assert read_record(path, known) == whole and read_record(path, known).recipe is whole.recipe
    assert read_record(path, ("0" * 64, {})) == whole, "one of another key is read as a whole"
    path.write_text(text.replace('"seed": 0', '"seed": [0'))
    assert read_record(path, known) == whole, "the key says what the recipe is"
    for damaged in (text.replace('"half.txt"', '"../half.txt"'), text.replace('"schema": 1,\n "stage"', '"schema": 2')):
        assert damaged != text
        path.write_text(damaged)
        with pytest.raises(StoreError, match="damaged record"):
            read_record(path, known)


def test_a_stage_without_its_input_says_which_one(bench: Bench) -> None:
    with pytest.raises(StoreError, match="needs fetch"):
        bench.ensure("import_model")


def test_a_changed_parameter_misses_and_the_old_value_is_restored_from_dvcs_cache(bench: Bench) -> None:
    bench.ensure("fetch")
    cache = bench.root / ".dvc" / "cache" / "files" / "md5"
    for path in (p for p in bench.folder("fetch").rglob("*") if p.is_file() and p.name != RECORD_NAME):
        md5 = describe_file(path).md5
        (cache / md5[:2]).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, cache / md5[:2] / md5[2:])
    bench.set_seed(3)
    plan = bench.store.plan("fetch", bench.cell)
    assert isinstance(plan, Plan) and not plan.is_hit and plan.reason == "params.seed: 0 -> 3"
    assert bench.ensure("fetch") == "made"
    bench.set_seed(0)
    assert bench.ensure("fetch") == "restored"
    assert (bench.folder("fetch") / "deep" / "number.txt").read_text() == "0"


def test_another_cell_with_the_same_recipe_gets_the_same_bytes(bench: Bench) -> None:
    bench.ensure("fetch")
    assert bench.ensure("fetch", bench.other) == "restored"
    assert bench.calls() == ["fetch"]
    assert bench.store.record_of("fetch", bench.other).cell == str(bench.other)


def test_a_renamed_cell_has_the_log_of_the_one_before(bench: Bench) -> None:
    stages = {**STAGES, "fetch": replace(STAGES["fetch"], keeps_log=True)}
    bench.store = Store(bench.workspace, stages)
    bench.ensure("fetch")
    log = bench.workspace.tuning_log(bench.cell)
    log.parent.mkdir()
    log.write_text("records")
    assert bench.ensure("fetch", bench.other) == "restored"
    assert bench.workspace.tuning_log(bench.other).read_text() == "records"
    log.unlink()
    bench.workspace.tuning_log(bench.other).unlink()
    assert bench.ensure("fetch") == "hit" and log.read_text() == "", "DVC records a log for every cell"


@pytest.mark.parametrize("damage", ["altered", "gone", "record torn", "record of something else", "record lies"])
def test_a_hit_whose_bytes_cannot_be_believed_is_made_again_or_restored(bench: Bench, damage: str) -> None:
    bench.ensure("fetch")
    bench.ensure("import_model")
    folder = bench.folder("fetch")
    record = folder / RECORD_NAME
    if damage == "altered":
        (folder / "deep" / "number.txt").write_text("9")
    elif damage == "gone":
        (folder / "deep" / "number.txt").unlink()
    elif damage == "record torn":
        record.write_text(record.read_text()[:100])
    elif damage == "record of something else":
        record.write_text(json.dumps({"schema": 1}))
    else:
        data = json.loads(record.read_text())
        data["recipe"]["params"]["seed"] = 5
        record.write_text(json.dumps(data))
    assert bench.ensure("fetch") == ("restored" if damage.startswith("record") else "made")
    assert (folder / "deep" / "number.txt").read_text() == "0"
    assert bench.ensure("import_model") == "hit"  # the same bytes came back, so nothing after is touched


def test_damage_is_restored_where_another_cell_still_has_the_bytes(bench: Bench) -> None:
    bench.ensure("fetch")
    bench.ensure("fetch", bench.other)
    (bench.folder("fetch") / "half.txt").write_text("altered")
    assert bench.ensure("fetch") == "restored"
    assert bench.calls() == ["fetch"]


def test_a_damaged_index_is_no_more_than_a_miss(bench: Bench) -> None:
    bench.ensure("fetch")
    for path in (bench.workspace.artifacts / ".index").rglob("*.json"):
        path.write_text('{"record": 1')
    assert bench.ensure("fetch", bench.other) == "made"


def test_an_index_that_points_outside_is_not_followed(bench: Bench) -> None:
    bench.ensure("fetch")
    record = bench.folder("fetch") / RECORD_NAME
    data = json.loads(record.read_text())
    data["outputs"]["../../evil.txt"] = data["outputs"]["half.txt"]
    record.write_text(json.dumps(data))
    assert bench.ensure("fetch") == "restored"
    assert "../../evil.txt" not in bench.store.record_of("fetch", bench.cell).outputs
    assert not (bench.root / "artifacts" / "evil.txt").exists()


def test_a_failure_is_never_cached_and_leaves_the_old_outputs(bench: Bench) -> None:
    bench.ensure("fetch")
    bench.set_seed(4)
    (bench.root / "fail").touch()
    with pytest.raises(RuntimeError):
        bench.ensure("fetch")
    assert (bench.folder("fetch") / "deep" / "number.txt").read_text() == "0"
    (bench.root / "fail").unlink()
    assert bench.ensure("fetch") == "made"
    assert (bench.folder("fetch") / "deep" / "number.txt").read_text() == "4"
    assert not list((bench.workspace.artifacts / ".tmp").iterdir())


@pytest.mark.parametrize(("fault", "says"), [("full", "no space left"), ("forbidden", "no permission")])
def test_full_disk_and_missing_permission_are_one_clear_error(bench: Bench, fault: str, says: str) -> None:
    bench.ensure("fetch")
    bench.set_seed(5)
    (bench.root / fault).touch()
    with pytest.raises(StoreError, match=says):
        bench.ensure("fetch")
    assert (bench.folder("fetch") / "deep" / "number.txt").read_text() == "0"


def test_a_killed_process_leaves_nothing_that_counts(bench: Bench) -> None:
    bench.ensure("fetch")
    bench.set_seed(6)
    (bench.root / "slow").touch()
    process = bench.start("fetch")
    bench.wait_for("artifacts/.tmp/fetch.*.new-*/half.txt")
    process.send_signal(signal.SIGKILL)
    process.wait()
    (bench.root / "slow").unlink()
    assert (bench.folder("fetch") / "deep" / "number.txt").read_text() == "0"
    assert bench.ensure("fetch") == "made"
    assert (bench.folder("fetch") / "deep" / "number.txt").read_text() == "6"
    assert not list((bench.workspace.artifacts / ".tmp").iterdir())


def test_a_kill_between_the_two_renames_loses_nothing(bench: Bench) -> None:
    bench.ensure("fetch")
    temporary = bench.workspace.artifacts / ".tmp"
    os.rename(bench.folder("fetch"), temporary / f"fetch.{bench.cell.slug}.previous")
    assert bench.ensure("fetch") == "hit"
    assert bench.calls() == ["fetch"]


def test_two_processes_on_one_cell_do_the_work_once(bench: Bench) -> None:
    (bench.root / "slow").touch()
    first = bench.start("fetch")
    bench.wait_for("artifacts/.tmp/fetch.*.new-*/half.txt")
    others = [bench.start("fetch"), bench.start("fetch", "digits-keras")]
    time.sleep(1.0)
    (bench.root / "slow").unlink()
    outcomes = [process.communicate(timeout=120)[0].strip() for process in (first, *others)]
    assert outcomes == ["made", "hit", "restored"]
    assert bench.calls() == ["fetch"]


def test_deploy_is_never_cached(bench: Bench) -> None:
    for name in ("fetch", "import_model", "deploy", "deploy"):
        bench.ensure(name)
    assert bench.calls().count("deploy") == 2


def test_a_folder_that_cannot_be_read_is_not_believed(bench: Bench) -> None:
    bench.ensure("fetch")
    (bench.folder("fetch") / "half.txt").unlink()
    (bench.folder("fetch") / "half.txt").mkdir()
    plan = bench.store.plan("fetch", bench.cell)
    assert isinstance(plan, Plan) and not plan.is_hit


@pytest.mark.parametrize("left", [("double.txt", "more.txt"), ("other.txt",), ()])
def test_a_stage_that_leaves_other_files_than_its_row_says_has_failed(bench: Bench, left: tuple[str, ...]) -> None:
    """DVC would not own what the row does not name, and the next stage would miss what it does not find."""

    def run(context: Any) -> dict[str, Any]:
        for name in left:
            (context.out / name).write_text("x")
        return {}

    bench.ensure("fetch")
    store = Store(bench.workspace, {**STAGES, "import_model": replace(STAGES["import_model"], run=run)})
    with pytest.raises(StageError, match="import_model left"):
        store.ensure("import_model", bench.cell)
    assert not bench.folder("import_model").exists()


def look(context: StageContext[Any, Any]) -> None:
    assert context.out.is_dir() and context.inputs == {}
    context.progress("first: seen", 0, 0)


def test_what_is_said_before_a_stage_is_said_only_where_it_would_run_and_stores_nothing(bench: Bench) -> None:
    stages = {**STAGES, "fetch": replace(STAGES["fetch"], preview=f"{__name__}:look")}
    store, said = Store(bench.workspace, stages), list[str]()

    def preview() -> int:
        store.preview("fetch", bench.cell, lambda text, *_: said.append(text))
        return len(said)

    assert preview() == 1 and said == ["first: seen"] and bench.calls() == []
    assert not bench.folder("fetch").exists()
    bench.ensure("fetch")
    assert preview() == 1, "it is a hit"
    bench.set_seed(1)
    bench.store.preview("fetch", bench.cell, lambda *_: said.append("by a stage without one"))
    assert preview() == 2

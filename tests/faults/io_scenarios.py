"""List what writes files, each as a function of a folder that may be run again after it failed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tests.bundle_parts import CELL, small_part
from tests.conftest import small_params
from tests.pipeline.fake_stages import STAGES
from tests.tracking.test_result_tables import _measured, _only
from tests.tuning.test_record_format import ONE
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.store import Store
from tvmflow.report.page import write_atomic as write_page
from tvmflow.setup.new_project import make_workspace
from tvmflow.shipping.bundle.signing import new_keys, public_key, signing_key
from tvmflow.shipping.bundle.verify import Trust, check_contents
from tvmflow.shipping.bundle.wheel import write_wheel
from tvmflow.shipping.bundle.write import BundleRequest, write_bundle
from tvmflow.shipping.release_trust import keys_path, sign_keys, sign_releases
from tvmflow.support.temporary import temporary_folder
from tvmflow.tracking.app_releases import Releases, read_releases, write_releases
from tvmflow.tracking.dvc.pipelines import drop_stages
from tvmflow.tracking.mlflow.markers import write_marker
from tvmflow.tracking.mlflow.measurements import Measurement
from tvmflow.tracking.mlflow.recorded import _keep
from tvmflow.tracking.result_tables import ResultTable, write_table
from tvmflow.tuning.records.record import append_record, read_records

Deed = Callable[[Path], Any]


def _nothing(_root: Path) -> None:
    pass


@dataclass(frozen=True)
class Scenario:
    """do: what is tried under faults, and again without. prepare: what was there before. random: files whose bytes
    differ each time. counts: it adds to what is there each time, so that it is tried again only if it said that it
    failed.
    """

    do: Deed
    prepare: Deed = _nothing
    random: bool = False
    counts: bool = False


def _workspace(root: Path) -> None:
    (root / "params.yaml").write_text(yaml.safe_dump(small_params(), sort_keys=False))


def _store(root: Path) -> None:
    where = Workspace(root)
    store, cell = Store(where, STAGES), where.params.cell("digits")
    for stage in ("fetch", "import_model"):
        store.ensure(stage, cell)


def _made_before(root: Path) -> None:
    _workspace(root)
    _store(root)
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["fetch"]["split_seed"] += 1
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False) + "\n")


def _missing(root: Path) -> None:
    """Let the outputs be restored from the folder of another cell."""
    _workspace(root)
    _store(root)
    where = Workspace(root)
    other = where.params.cell("digits-keras")
    Store(where, STAGES).ensure("fetch", other)
    shutil.rmtree(where.folder("fetch", where.params.cell("digits")))


def _release(root: Path, key: Any) -> None:
    where = Workspace(root)
    known = read_releases(where, "demo")
    if known.serial < 2:
        write_releases(where, sign_releases(replace_app(known), key))


def replace_app(known: Releases) -> Releases:
    return known.model_copy(update={"app": "demo"})


def _log(root: Path) -> None:
    path = root / "log" / "a.jsonl"
    known = {record.created for record in read_records(path)}
    for created in ("first", "second"):
        if created not in known:
            append_record(path, replace(ONE, created=created))


def _keys(root: Path) -> None:
    if not (root / "keys" / "key.pub").exists():  # they are never overwritten
        new_keys(root / "keys" / "key")


def _project(root: Path) -> None:
    if not (root / "project" / "params.yaml").exists():  # refused where there is one
        make_workspace(root / "project")


_LOCK = "schema: '2.0'\nstages:\n  build@a:\n    cmd: x\n  build@b:\n    cmd: y\n"


def scenarios(folder: Path) -> dict[str, Scenario]:
    """Return the scenarios by name. folder: an empty one, for what they share."""
    part = small_part(folder / "cell")
    keys = new_keys(folder / "key")
    private, public = signing_key(keys.private), public_key(keys.public)
    write_bundle(folder / "ready.zip", [part], BundleRequest("small", version=3), private)
    request = BundleRequest("small", version=3)

    def keep(root: Path) -> None:
        measurement = Measurement(CELL, part.records, part.path)
        _keep(Workspace(root), measurement)

    def verify(root: Path) -> None:
        import tempfile

        before, tempfile.tempdir = tempfile.tempdir, str(root)
        try:
            check_contents(folder / "ready.zip", Trust(public))
        finally:
            tempfile.tempdir = before

    def use_temporary(root: Path) -> None:
        with temporary_folder("faults", root) as own:
            (own / "deep").mkdir()
            (own / "deep" / "a").write_text("a")

    rows = (_only(_measured("a", 1.0, 1)),)
    return {
        "stage store": Scenario(_store, _workspace),
        "stage store, made before": Scenario(_store, _made_before),
        "stage store, restored": Scenario(_store, _missing),
        "keys": Scenario(_keys, random=True),
        "bundle": Scenario(lambda root: write_bundle(root / "b.zip", [part], request, private)),
        "wheel": Scenario(lambda root: write_wheel(root, [part], request, private)),
        "verified bundle": Scenario(verify),
        "releases": Scenario(lambda root: _release(root, private), _workspace, counts=True),
        "keys of an app": Scenario(
            lambda root: write_page(keys_path(root, "demo"), sign_keys(root, "demo", private, [public], 90).decode()),
            counts=True,
        ),
        "result table": Scenario(
            lambda root: write_table(Workspace(root), ResultTable(model="digits_torch", rows=rows)), _workspace
        ),
        "tuning log": Scenario(_log),
        "MLflow's markers": Scenario(
            lambda root: write_marker(Workspace(root), "a" * 64, str(CELL), "c" * 40, "run"), _workspace
        ),
        "kept measurement": Scenario(keep, _workspace),
        "dvc.lock": Scenario(
            lambda root: drop_stages(root / "dvc.lock", {"a"}), lambda root: (root / "dvc.lock").write_text(_LOCK)
        ),
        "new project": Scenario(_project),
        "temporary folder": Scenario(use_temporary),
    }

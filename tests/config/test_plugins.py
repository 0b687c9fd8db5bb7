"""Test plug-ins: found by name, imported on use, named in errors, part of the recipe key."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.table import STAGES
from tests.conftest import REPOSITORY
from tvmflow.config.params import load_params
from tvmflow.config.plugins import Table, entry_points
from tvmflow.evaluation.metrics import mean_iou, value_of
from tvmflow.pipeline.check_params import check_rows, packages_of
from tvmflow.support.errors import ParamsError, UsageError
from tvmflow.tuning.search.tuners import TUNERS

READS = STAGES["tune"].reads


def _install(folder: Path, points: str, package: str = "mine", version: str = "1.2") -> None:
    """Make a folder of packages that has one more, as pip leaves it."""
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(points)
    entry_points.cache_clear()  # as in a process that starts now


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_a_row_of_a_package_is_found_and_imported_when_it_is_used(packages: Path) -> None:
    (packages / "mine_rows.py").write_text("backwards = 'a tuner'\n")
    _install(packages, "[tvmflow.tuners]\nbackwards = mine_rows:backwards\n")
    assert "backwards" in TUNERS and "backwards" in list(TUNERS) and "mine_rows" not in sys.modules
    assert TUNERS["backwards"] == "a tuner" and len(TUNERS) == len(list(TUNERS))
    assert TUNERS.package("backwards") == ("mine", "1.2") and TUNERS.package("xgb") is None
    params = load_params(REPOSITORY / "params.yaml")
    assert packages_of(params, params.cell("digits"), READS) == {}
    mine = params.model_copy(update={"tune": params.tune.model_copy(update={"tuner": "backwards"})})
    check_rows(mine)
    assert packages_of(mine, params.cell("digits"), READS) == {"plugin:mine": "1.2"}
    assert packages_of(mine, params.cell("digits"), STAGES["build"].reads) == {}, "no tuner changes what is built"


def test_a_plug_in_that_fails_or_takes_a_name_is_named(packages: Path) -> None:
    table = Table("things", {"ours": 1})
    _install(packages, "[tvmflow.things]\nbroken = no_such_module:thing\n", "broken-package")
    assert "broken" in table
    with pytest.raises(UsageError, match=r"plug-in 'broken' of things cannot be loaded: ModuleNotFoundError") as raised:
        table["broken"]
    assert "broken-package" in raised.value.expected
    _install(packages, "[tvmflow.things]\nours = mine_rows:ours\n", "greedy")
    with pytest.raises(UsageError, match="from greedy has the same name as tvmflow itself"):
        list(table)
    with pytest.raises(KeyError):
        Table("nothing", {"ours": 1})["theirs"]


def test_a_metric_of_a_package_takes_the_place_of_the_accuracy(packages: Path) -> None:
    (packages / "mine_metrics.py").write_text(
        "def half(outputs, labels): return 0.5\ndef two(outputs, labels): return 2.0\n"
    )
    _install(
        packages, "[tvmflow.metrics]\nhalf = mine_metrics:half\ntwo = mine_metrics:two\nnone = mine_metrics:none\n"
    )
    outputs, labels = (np.eye(4)[None],), np.zeros(1)
    assert value_of("half", outputs, labels) == 0.5
    with pytest.raises(UsageError, match="metric 'two' gives 2"):
        value_of("two", outputs, labels)
    with pytest.raises(UsageError, match="plug-in 'none' of metrics cannot be loaded"):
        value_of("none", outputs, labels)
    params = load_params(REPOSITORY / "params.yaml")
    model = params.models["digits_torch"].model_copy(update={"metric": "half"})
    mine = params.model_copy(update={"models": {**params.models, "digits_torch": model}})
    check_rows(mine)
    assert packages_of(mine, params.cell("digits"), STAGES["evaluate"].reads) == {"plugin:mine": "1.2"}
    with pytest.raises(ParamsError, match=r"models.digits_torch.metric: no 'haf' .did you mean 'half'"):
        check_rows(mine.model_copy(update={"models": {"digits_torch": model.model_copy(update={"metric": "haf"})}}))


@given(st.integers(1, 3), st.integers(2, 5), st.integers(0, 2**31))
def test_mean_iou_equals_its_definition(count: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, labels = rng.normal(size=(count, classes, 4, 3)), rng.integers(0, classes + 1, (count, 4, 3))
    labels[labels == classes] = 255
    predicted, valid = scores.argmax(1), labels != 255
    shares = [
        (valid & (predicted == c) & (labels == c)).sum() / either
        for c in range(classes)
        if (either := (valid & ((predicted == c) | (labels == c))).sum())
    ]
    if shares:
        assert mean_iou((scores,), labels) == pytest.approx(np.mean(shares))


def test_mean_iou_refuses_labels_of_another_shape() -> None:
    with pytest.raises(UsageError, match=r"metric 'mean_iou' fails: ValueError: outputs of shape \(1, 2, 4, 4\)"):
        value_of("mean_iou", (np.zeros((1, 2, 4, 4)),), np.zeros(1))

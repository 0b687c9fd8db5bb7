"""Test the Python API on a finished workspace, as a notebook or a service calls it."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tvmflow
from tests.conftest import CELL, REPOSITORY, SLUG
from tests.tracking.ledger_bench import LedgerBench
from tvmflow.evaluation.loaded_library import LoadedLibrary
from tvmflow.support.errors import StoreError, TvmflowError, UnknownNameError, UsageError


def golden(root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the golden inputs of the digits cell and the outputs of its quantized form."""
    x = np.load(root / "artifacts/fetch" / SLUG / "golden.npz")["x"]
    return x, np.load(root / "artifacts/quantize" / SLUG / "reference.npz")["golden"]


def test_importing_tvmflow_costs_nothing_and_its_names_are_there() -> None:
    code = (
        "import sys, tvmflow; before = len(sys.modules)\n"
        "ours = {m for m in sys.modules if m.startswith('tvmflow.')}\n"
        "assert ours == {'tvmflow.support', 'tvmflow.support.version'}, 'lazy'\n"
        "from tvmflow import Workspace, run, plan, scorecard, history, predict, load\n"
        "print([m for m in ('tvm', 'torch', 'prefect', 'mlflow', 'dvc', 'numpy', 'rich') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stdout + done.stderr
    assert set(tvmflow.__all__) <= set(dir(tvmflow))
    with pytest.raises(AttributeError, match="no_such_name"):
        tvmflow.no_such_name  # noqa: B018


def test_an_unchanged_run_does_nothing_and_returns_its_scorecard(finished: Path) -> None:
    [result] = tvmflow.run("digits", workspace=finished)
    assert result.cell == CELL and result.outcomes == {} and result.error is None
    card = tvmflow.scorecard("digits", finished)
    assert result.scorecard == card and card.accuracy is not None
    assert set(card.accuracy) == {"source", "imported", "quantized", "built"} and card.accuracy["built"] > 0.8
    assert 0 < card.latency.min_ms <= card.latency.median_ms <= card.latency.max_ms
    assert "onnxruntime" in card.peers and card.raw["cell"] == CELL and "raw" not in repr(card)


def test_a_run_from_a_running_event_loop_and_from_a_thread(finished: Path) -> None:
    async def notebook() -> str:
        return tvmflow.run(CELL, workspace=str(finished))[0].cell

    assert asyncio.run(notebook()) == CELL
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(tvmflow.run(CELL, workspace=finished)[0].cell))
    thread.start()
    thread.join()
    assert results == [CELL]


def test_a_plan_says_what_would_be_done(finished: Path) -> None:
    [plan] = tvmflow.plan("digits", workspace=finished)
    assert plan.cell == CELL and plan.error is None and plan.todo == ()
    [plan] = tvmflow.plan("digits_torch@local-cpu:float16", workspace=finished)
    assert "build" in plan.todo and {stage.state for stage in plan.stages} <= {"hit", "restore", "miss", "waits"}
    with pytest.raises(UnknownNameError, match="digits_torch"):
        tvmflow.plan("digits_torhc@local-cpu:float32", workspace=finished)


def test_a_workspace_is_found_above_the_current_folder(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished / "docs")
    assert tvmflow.plan("digits")[0].cell == CELL
    monkeypatch.chdir(finished.parent)
    with pytest.raises(UsageError, match=r"no params\.yaml"):
        tvmflow.plan("digits")


def test_history_has_numbers_and_links(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [measurement] = tvmflow.history("digits", finished)
    assert measurement.cell == CELL and measurement.roles == ("challenger",) and measurement.version == "1"
    card = tvmflow.scorecard("digits", finished)
    assert card.accuracy and measurement.accuracy == pytest.approx(card.accuracy["built"])
    assert measurement.latency_ms == pytest.approx(card.latency.median_ms)
    assert measurement.url.startswith("http://127.0.0.1:5000/#/experiments/")
    assert measurement.url.endswith(f"/runs/{measurement.run_id}?workflowType=machine_learning")
    monkeypatch.setenv("TVMFLOW_MLFLOW_UI", "https://mlflow.example/ui/")
    assert tvmflow.history("digits", finished)[0].url.startswith("https://mlflow.example/ui/#/experiments/")


def test_a_loaded_library_answers_as_the_device_did(finished: Path) -> None:
    x, expected = golden(finished)
    with tvmflow.load("digits", finished) as model:
        assert [spec.dtype for spec in model.inputs] == ["float32"] and CELL in repr(model)
        y = model(x)
        assert isinstance(y, np.ndarray) and y.dtype == np.float32
        np.testing.assert_allclose(y, expected, atol=1e-4)
        np.testing.assert_array_equal(model(x[:3].astype(np.float64)), y[:3], "any number of samples, any float")
        np.testing.assert_array_equal(model(**{model.inputs[0].name: x[:1]}), y[:1], "by name")
        answers: list[object] = []
        threads = [threading.Thread(target=lambda: answers.append(model(x))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 4 and all(np.array_equal(answer, y) for answer in answers)
        for wrong, said in (
            (x[0], r"x\[None\]"),
            (x[:, :, :-1], "shape"),
            (x[:0], "any N from 1"),
            (x.astype(complex), "complex128"),
            (np.array([["a"]]), "shape"),
        ):
            with pytest.raises(UsageError, match=said):
                model(wrong)
        with pytest.raises(UsageError, match="2 arrays"):
            model(x, x)
    with pytest.raises(UsageError, match="closed"):
        model(x)


def test_predict_runs_on_the_device_of_the_cell(finished: Path) -> None:
    x, expected = golden(finished)
    np.testing.assert_allclose(tvmflow.predict("digits", x[:5], finished), expected[:5], atol=1e-4)
    with pytest.raises(UsageError, match="shape"):
        tvmflow.predict("digits", x[0], finished)


def test_predict_reads_arrays_and_writes_them(finished: Path, tmp_path: Path) -> None:
    from tests.conftest import tvmflow as command
    from tvmflow import api

    x, expected = golden(finished)
    np.savez(tmp_path / "x.npz", x[:3])
    (name, found), *others = api.predict_file("digits", tmp_path / "x.npz", finished).items()
    assert not others
    np.testing.assert_allclose(found, expected[:3], atol=1e-4)
    np.savetxt(tmp_path / "x.csv", x[:3].reshape(3, -1), delimiter=",")
    command(finished, "predict", CELL, str(tmp_path / "x.csv"), "-o", str(tmp_path / "y.npz"))
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")[name], expected[:3], atol=1e-4)


def test_what_is_not_built_or_was_altered_is_not_loaded(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="tvmflow run"):
        tvmflow.load("digits_torch@local-cpu:float16", finished)
    folder = Path(shutil.copytree(finished / "artifacts/build" / SLUG, tmp_path / "library"))
    with (folder / "library.so").open("ab") as file:
        file.write(b"more")
    with pytest.raises(StoreError, match="altered"):
        LoadedLibrary(folder)
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(StoreError, match="no library"):
        LoadedLibrary(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76", "mattr": []}, "another kind"),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3", "mattr": ["+amx-tile", "+amx-int8"]}, "lacks amx-"),
    ],
)
def test_code_of_another_processor_does_not_end_this_process(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], said: str
) -> None:
    from tvmflow.toolchain import versions as toolchain

    lines = [line.replace("amx", "none") for line in toolchain._cpu_lines()]
    monkeypatch.setattr(toolchain, "_cpu_lines", lambda: lines)
    folder = Path(shutil.copytree(finished / "artifacts/build" / SLUG, tmp_path / "library"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["target"] |= change
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match=said):
        LoadedLibrary(folder)


def test_failures_of_a_run_are_raised_once_or_kept(ledger: LedgerBench) -> None:
    from tvmflow.api import RunResult
    from tvmflow.api.runs import raise_failures

    one = RunResult("a", {}, StoreError("gone", hint="look"), "fetch")
    with pytest.raises(StoreError, match="gone"):
        raise_failures([RunResult("b", {}), one])
    with pytest.raises(TvmflowError, match=r"(?s)a \(fetch\): gone.*c \(tune\)"):
        raise_failures([one, RunResult("c", {}, TvmflowError("slow"), "tune")])
    with pytest.raises(StoreError, match="never measured"):
        tvmflow.scorecard("digits", ledger.workspace)


def test_an_image_file_becomes_the_names_of_classes(finished: Path, tmp_path: Path) -> None:
    """Digits of the data set as PNG files, enlarged: most are read as what they are, on the cell's device."""
    from PIL import Image
    from sklearn.datasets import load_digits

    from tests.conftest import tvmflow as command

    digits = load_digits()
    for at in range(10):
        pixels = np.kron(digits.images[at] * (255 / 16), np.ones((4, 4))).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{at}.png")
    files = [str(tmp_path / f"{at}.png") for at in range(10)]
    done = command(finished, "predict", CELL, *files, "--json", "--top", "3")
    rows = json.loads(done.stdout)
    assert [row["image"] for row in rows] == files and {len(row["top"]) for row in rows} == {3}
    assert sum(row["top"][0]["name"] == str(digits.target[at]) for at, row in enumerate(rows)) >= 7
    shown = command(finished, "predict", CELL, files[0])
    assert "probability" in shown.stdout and "%" in shown.stdout
    (tmp_path / "bad.png").write_bytes(b"no image")
    failed = command(finished, "predict", CELL, str(tmp_path / "bad.png"), code=1)
    assert "bad.png cannot be read as an image" in failed.stderr and "Traceback" not in failed.stderr

"""Check the records of one finished run in Prefect, DVC, MLflow, the model registry and the report."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from flows.stage_process import StageRequest, run_stage
from tests.conftest import CELL, SLUG, stage, tvmflow
from tvmflow.backends.manifest import read_manifest
from tvmflow.config.params import STAGE_NAMES
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.roofline import Work
from tvmflow.support.digests import Digests
from tvmflow.support.files import describe_file
from tvmflow.tracking.mlflow.notes import notes_of
from tvmflow.tracking.mlflow.registry import version_by_alias
from tvmflow.tracking.mlflow.store import open_mlflow


def _dvc(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=root, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def _json(root: Path, *arguments: str) -> Any:
    return json.loads(tvmflow(root, *arguments, "--json").stdout)


def test_accuracy_and_agreement(finished: Path) -> None:
    card = json.loads((finished / "artifacts" / "evaluate" / SLUG / "scorecard.json").read_text())
    assert card["accuracy"]["built"] >= 0.90  # four epochs here; the shipped twenty reach 0.99
    assert card["agreement"]["top1_agreement"] == 1.0
    assert card["agreement"]["max_relative_error"] < 1e-4 and card["agreement"]["sqnr_db"] > 80
    assert set(card["peers"]) == {"source", "onnxruntime"}
    reason = card["bounds"]["reason"]
    assert reason is None or "less than its bound" in reason  # other tests run while ceilings are measured


def test_the_manifest_counts_operations_and_constants(finished: Path) -> None:
    """Convolutions of 3x3 over 8x8 and 4x4 pixels, a pool of 2x2, the mean, and a dense layer whose 10 outputs fill a
    register of 16.
    """
    manifest = read_manifest(finished / "artifacts" / "build" / SLUG)
    products = 2 * 9 * (1 * 32 * 64 + 32 * 32 * 64 + 32 * 64 * 16) + 2 * 64 * 16
    others = 2 * 4 * 32 * 16 + 2 * 64 * 16 + 10
    constants = 9 * (1 * 32 + 32 * 32 + 32 * 64) + 64 * 16 + 32 + 32 + 64 + 16
    names = {kernel.name for kernel in manifest.kernels}
    timed = json.loads((finished / "artifacts" / "evaluate" / SLUG / "scorecard.json").read_text())["bounds"]
    assert timed["reason"] or {row["name"] for row in timed["kernels"] if row["ms"] > 0} == names
    assert Work.of(manifest.kernels) == Work({"float32": products + others}, 4 * constants)


def test_a_second_run_starts_nothing(finished: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (finished / ".prefect").rglob("*.db*")}
    done = tvmflow(finished, "run", "digits")
    assert "nothing to do" in done.stderr and "Prefect" not in done.stderr
    assert before == {p: p.stat().st_mtime_ns for p in (finished / ".prefect").rglob("*.db*")}
    assert all(row["state"] == "hit" for row in _json(finished, "why", "digits")[CELL])


def test_a_prefect_server_with_this_home_shows_the_runs(finished: Path) -> None:
    """`PREFECT_HOME=.prefect prefect server start` opens this database: the address comes from Prefect itself."""
    code = "from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL as url; print(url.value())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PREFECT_HOME": str(finished / ".prefect")},
        check=True,
        capture_output=True,
        text=True,
        cwd=finished,
    )
    path = Path(done.stdout.strip().partition("///")[2])
    with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as store:
        runs = store.execute("SELECT name, state_type, tags FROM flow_run").fetchall()
        artifacts = {key for (key,) in store.execute("SELECT key FROM artifact")}
        [lines] = store.execute("SELECT count(*) FROM log WHERE task_run_id IS NOT NULL").fetchone()
    assert (f"sweep {CELL}", "COMPLETED", json.dumps([CELL])) in runs
    assert {f"{kind}-digits-torch-local-cpu-float32" for kind in ("scorecard", "mlflow")} <= artifacts and lines >= 8


def test_every_reading_command_gives_json(finished: Path) -> None:
    assert _json(finished, "status")["cells"][0]["todo"] == []
    devices = {row["target"]: row for row in _json(finished, "devices")["targets"]}
    assert (
        set(devices)
        == set(yaml.safe_load((finished / "params.yaml").read_text())["targets"])
        > {"local-cpu", "vta-sim"}
    )
    assert devices["vta-sim"]["state"] == "this machine"
    assert "sim_1x16_i8w8a32_15_15_18_17" in devices["vta-sim"]["kind"]
    assert _json(finished, "history", "digits")[0]["version"].startswith("1")
    assert _json(finished, "report")["cells"][0]["card"]["cell"] == CELL
    assert {finding["level"] for finding in _json(finished, "doctor")} <= {"ok", "warning"}
    assert _json(finished, "run", "digits", "--dry-run")[CELL][0]["state"] == "hit"


def test_why_names_the_parameter_that_changed(copy_of_finished: Path) -> None:
    path = copy_of_finished / "params.yaml"
    path.write_text(path.read_text().replace("measure_repeats: 2", "measure_repeats: 3"))
    rows = {row["stage"]: row for row in _json(copy_of_finished, "why", "digits")[CELL]}
    assert rows["graph_pack"]["state"] == "hit"
    assert rows["tune"]["why"] == "params.search.measure_repeats: 2 -> 3"
    assert rows["build"]["state"] == "waits"


def test_dvc_knows_everything_and_repro_changes_nothing(finished: Path) -> None:
    assert "up to date" in _dvc(finished, "status")
    out = _dvc(finished, "repro")
    assert out.count("didn't change, skipping") == len(STAGE_NAMES)
    assert _git(finished, "status", "--porcelain", "dvc.yaml") == ""


def test_a_stages_process_tells_the_walk_what_it_read(finished: Path) -> None:
    digests = Digests()
    assert run_stage(StageRequest("build", CELL, str(finished), 300.0), lambda *_: None, digests) == "hit"
    library = finished / "artifacts" / "build" / SLUG / "library.so"
    assert digests.sha256_of(library) == describe_file(library).sha256
    assert digests.bytes_read == 0


def test_dvc_repro_and_the_flow_find_each_others_work(copy_of_finished: Path, with_prefect_server: str) -> None:
    """A stage that DVC has to run because its folder is gone finds the bytes by its recipe key."""
    root = copy_of_finished
    shutil.rmtree(root / "artifacts" / "quantize")
    out = _dvc(root, "repro", "build@digits")
    assert "quantize" in out
    tvmflow(root, "run", "digits")
    assert "up to date" in _dvc(root, "status")


def test_dvc_metrics_and_plots(copy_of_finished: Path) -> None:
    root = copy_of_finished
    _git(root, "add", "dvc.lock")
    _git(root, "commit", "-qm", "lock")
    metrics = root / "artifacts" / "evaluate" / SLUG / "metrics.json"
    changed = json.loads(metrics.read_text()) | {"accuracy": 0.5}
    metrics.unlink()
    metrics.write_text(json.dumps(changed))
    diff = json.loads(_dvc(root, "metrics", "diff", "HEAD", "--json"))
    assert "accuracy" in json.dumps(diff)
    _dvc(root, "plots", "show", "-o", "plots")
    assert (root / "plots" / "index.html").stat().st_size > 1000


def test_a_fresh_clone_pulls_and_finds_everything(finished: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shutil.copytree(finished, shared, symlinks=True, ignore=shutil.ignore_patterns(".prefect"))
    _git(shared, "add", "dvc.lock", ".dvc/config")
    _git(shared, "commit", "-qm", "lock")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(shared), str(clone)], check=True)
    _dvc(clone, "remote", "modify", "--local", "local", "url", str(shared / "dvc_storage"))
    _dvc(clone, "pull")
    rows = _json(clone, "why", "digits")[CELL]
    assert [row["state"] for row in rows] == ["hit"] * len(rows)
    assert (clone / "artifacts" / "tuning_log" / f"{SLUG}.jsonl").exists()


def test_a_lost_and_an_altered_output_come_back_from_dvcs_cache(
    copy_of_finished: Path, with_prefect_server: str
) -> None:
    root = copy_of_finished
    library = root / "artifacts" / "build" / SLUG / "library.so"
    good = library.read_bytes()
    for damage in ("gone", "altered"):
        library.unlink()
        if damage == "altered":
            library.write_bytes(good[:-1] + b"x")
        rows = {row["stage"]: row for row in _json(root, "why", "digits")[CELL]}
        assert rows["build"]["state"] == "restore"
        assert rows["build"]["why"] == f"made before; library.so {'is gone' if damage == 'gone' else 'was altered'}"
        results = json.loads(tvmflow(root, "run", "digits", "--json").stdout)["results"]
        assert results[0]["outcomes"]["build"] == "restored"
        assert library.read_bytes() == good


def test_a_library_built_twice_is_byte_identical(copy_of_finished: Path) -> None:
    """In another folder, by another process, from the same best records; nothing to restore it from is left."""
    root = copy_of_finished
    library = root / "artifacts" / "build" / SLUG / "library.so"
    before = describe_file(library)
    for folder in ("artifacts/build", "artifacts/.index", ".dvc/cache", "dvc_storage"):
        shutil.rmtree(root / folder)
    assert "made" in stage(root, "build").stdout
    assert describe_file(library) == before


def test_mlflow_has_numbers_tags_model_and_history(finished: Path) -> None:
    client = open_mlflow(Workspace(finished))
    experiment = client.get_experiment_by_name("digits_torch")
    assert experiment is not None
    [measured] = client.search_runs([experiment.experiment_id])
    trend = client.get_experiment_by_name("history of cells")
    assert trend is not None
    [history] = client.search_runs([trend.experiment_id])
    assert history.data.tags["tvmflow.kind"] == "history", "among measurements are only measurements"
    tvm, sha256 = measured.data.tags["toolchain.tvm"], measured.data.tags["library.sha256"]
    assert measured.info.run_name.startswith(f"local-cpu:float32 TVM {tvm} {sha256[:7]} 20")
    [dataset] = measured.inputs.dataset_inputs
    assert dataset.dataset.name == "digits_torch evaluation set" and measured.outputs.model_outputs[0].step == 0
    assert {
        "accuracy",
        "latency_ms.median",
        "agreement.sqnr_db",
        "library_bytes",
        "stage_s.tune",
        "peer_ms.onnxruntime",
    } <= set(measured.data.metrics)
    assert {"library.sha256", "git.commit", "toolchain.tvm", "device.kind"} <= set(measured.data.tags)
    assert {"recipe.build", "code.build", "toolchain.llvm"} <= set(notes_of(measured.data))
    assert {"recipe", "code", "toolchain"} <= set(measured.data.params)
    assert client.get_metric_history(measured.info.run_id, "tuning.kernels_ms")
    steps = [m.step for m in client.get_metric_history(history.info.run_id, "latency_ms.median")]
    assert steps == [measured.info.start_time // 1000], "the second of the measurement"
    models = client.search_logged_models([experiment.experiment_id])
    assert [model.model_type for model in models] == ["tvm-library"]
    folder = Path(models[0].artifact_location.removeprefix("file://"))
    assert {"MLmodel", "requirements.txt", "input_example.json", "data"} <= {p.name for p in folder.iterdir()}
    assert sorted(p.name for p in folder.rglob("data/*/*")) == ["library.so", "manifest.json"]
    version = version_by_alias(Workspace(finished), Workspace(finished).params.cell("digits"), "challenger")
    assert version is not None and version.sha256 == measured.data.tags["library.sha256"]


@pytest.mark.slow
def test_recording_again_after_a_crash_gives_one_measurement(copy_of_finished: Path, with_prefect_server: str) -> None:
    root = copy_of_finished
    for marker in (root / "artifacts" / ".recorded").glob("*.json"):
        marker.unlink()
    tvmflow(root, "run", "digits")
    assert len(_json(root, "history", "digits")) == 1


def test_a_lost_store_is_noticed_and_its_records_come_back(copy_of_finished: Path, with_prefect_server: str) -> None:
    root = copy_of_finished
    before = _json(root, "history", "digits")
    shutil.rmtree(root / "mlruns")
    assert "run 'tvmflow run" in tvmflow(root, "promote", "digits", code=1).stderr
    done = tvmflow(root, "run", "digits")
    assert "nothing to do" not in done.stderr
    after = _json(root, "history", "digits")
    new = {"run_id": "", "experiment_id": "", "url": ""}
    assert [row | new for row in after] == [row | new for row in before]
    (root / "mlruns" / "mlflow.db").write_text("no database")
    for command in (("history", "digits"), ("run", "digits"), ("report",), ("promote", "digits")):
        stderr = tvmflow(root, *command, code=1).stderr
        assert stderr.count("init --rebuild") == 1 and "Traceback" not in stderr and len(stderr) < 1000
    assert "restored: 1 measurement(s)" in tvmflow(root, "init", "--rebuild").stdout
    assert [row["version"] for row in _json(root, "history", "digits")] == ["1 challenger"]


def _edit(root: Path, old: str, new: str) -> None:
    text = (root / "params.yaml").read_text()
    assert old in text
    (root / "params.yaml").write_text(text.replace(old, new))


def test_release_gate_comparison_and_rollback(copy_of_finished: Path, with_prefect_server: str) -> None:
    root = copy_of_finished
    assert "would be" in tvmflow(root, "promote", "digits", "--dry-run").stdout
    assert "version 1 is the champion now (was no champion)" in tvmflow(root, "promote", "digits").stdout
    assert "already" in tvmflow(root, "promote", "digits").stdout

    # Another library: no x86 processor has blocks of 4 by itself.
    _edit(root, "channel_block: auto", "channel_block: 4")
    _edit(root, "trials_per_workload: 2", "trials_per_workload: 0")  # it need not be a good one
    _edit(root, "min_coverage: 0.5", "min_coverage: 0.0")
    _edit(root, "max_slowdown: 1000000000.0", "max_slowdown: 0.0")
    _edit(
        root, "confidence: 0.95", "confidence: 0.9999999999"
    )  # whose interval no number of rounds makes narrow enough
    tvmflow(root, "run", "digits")
    refused = tvmflow(root, "promote", "digits", code=3)
    body = {"flows": {"name": {"any_": ["release_model"]}}, "sort": "START_TIME_DESC"}
    run = requests.post(f"{with_prefect_server}/flow_runs/filter", json=body, timeout=120).json()[0]
    assert (run["state_type"], run["state_name"]) == ("FAILED", "Refused"), "automations can notify"
    assert run["name"] == f"release_model {CELL}" and run["tags"] == [CELL]
    assert "raise release.compare_rounds" in refused.stderr
    _edit(root, "confidence: 0.9999999999", "confidence: 0.95")
    _edit(root, "max_slowdown: 0.0", "max_slowdown: 1000000000.0")
    verdict = json.loads(tvmflow(root, "promote", "digits", "--json").stdout)
    assert verdict["promoted"] and 6 <= verdict["comparison"]["rounds"] <= 9  # more where turns are disturbed
    assert verdict["comparison"]["low"] <= verdict["comparison"]["ratio"] <= verdict["comparison"]["high"]
    rows = _json(root, "history", "digits")
    assert next(row["version"] for row in rows if "champion" in row["version"]).startswith("2")
    assert "version 1 again" in tvmflow(root, "rollback", "digits").stdout
    assert "version 2 again" in tvmflow(root, "rollback", "digits").stdout


def test_rollback_without_a_champion_is_one_error(finished: Path) -> None:
    assert "no previous champion" in tvmflow(finished, "rollback", "digits", code=1).stderr


def test_retune_with_the_same_toolchain_has_nothing_to_do(copy_of_finished: Path, with_prefect_server: str) -> None:
    tvmflow(copy_of_finished, "promote", "digits")
    assert "nothing to do" in tvmflow(copy_of_finished, "retune", "digits").stdout


def test_the_report_is_one_page_that_needs_nothing(finished: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    tvmflow(finished, "report", "--output", str(page))
    html = page.read_text()
    assert CELL in html and "onnxruntime" in html and "TVM" in html
    assert "default-src 'none'" in html and " src=" not in html.split("<script>")[0]


def test_no_color_and_results_on_stdout_progress_on_stderr(finished: Path) -> None:
    done = tvmflow(finished, "run", "digits")
    assert "\x1b[" not in done.stdout + done.stderr
    assert CELL in done.stdout and "next:" in done.stderr


@pytest.mark.slow
def test_tuning_records_are_merged_and_exchanged(copy_of_finished: Path, tmp_path: Path) -> None:
    root, log = copy_of_finished, copy_of_finished / "artifacts" / "tuning_log" / f"{SLUG}.jsonl"
    before = len(log.read_bytes().splitlines())
    shutil.copyfile(log, tmp_path / "other.jsonl")
    found = _json(root, "records", "digits", "--merge", str(tmp_path / "other.jsonl"))
    assert found["merged"] == 0 and found["known already"] == before == found["records"]
    exported = _json(root, "records", "digits", "--export", str(tmp_path / "database"))["exported"]
    assert exported >= 5
    log.unlink()
    found = _json(root, "records", "digits", "--import", str(tmp_path / "database"))
    assert found["imported"] == exported == found["workloads"]
    assert _json(root, "records", "digits", "--import", str(tmp_path / "database"))["imported"] == 0
    (tmp_path / "database" / "database_tuning_record.json").write_text("[0, [[], [1.0]")
    for option, path, says in (
        ("--import", tmp_path / "database", "this TVM cannot read"),
        ("--import", tmp_path, "no database_workload.json"),
        ("--merge", tmp_path / "gone", "no file"),
    ):
        done = tvmflow(root, "records", "digits", option, str(path), code=1)
        assert says in done.stderr and "Traceback" not in done.stderr

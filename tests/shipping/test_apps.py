"""Test releases of an app: gates, the release file, and an intact former release after a crash at any step."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bundle_parts import CELL, sha256, small_part
from tests.scorecards import AGREEMENT, accuracy, latency, latency_by_part, scorecard
from tvmflow.config.params import AppEntry, Gates, load_params
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.quality_warnings import CALIBRATED_ON_NOISE
from tvmflow.evaluation.scorecard import GpuNumbers, Scorecard
from tvmflow.shipping import release_app as apps
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.signing import KeyPair, signing_key
from tvmflow.shipping.bundle.verify import Trust, verify
from tvmflow.shipping.gates.app import judge_bundle, judge_cell
from tvmflow.shipping.release_app import AppRelease, Order, promote_app, release_app, rollback_app
from tvmflow.support.errors import ParamsError, StoreError
from tvmflow.tracking.app_releases import (
    Releases,
    bundle_path,
    evidence_path,
    read_releases,
    restore_bundle,
)
from tvmflow.tracking.dvc import repository as dvc
from tvmflow.tracking.result_tables import Held, hold

ENTRY = AppEntry(cells=(CELL,))
OTHER_LABELS = ("ant", "bee", "cow", "dab", "elk")


def _silent(_step: str) -> None:
    pass


@pytest.fixture(scope="module")
def parts(part: Part, tmp_path_factory: pytest.TempPathFactory) -> tuple[Part, Part, Part]:
    """Three libraries of one cell."""
    folder = tmp_path_factory.mktemp("parts")
    return part, *(small_part(folder / name, tuple(f"{name}{x}" for x in OTHER_LABELS), name) for name in ("4", "5"))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "params.yaml").write_text("models: {}\n")
    return Workspace(tmp_path)


@pytest.fixture
def not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the sandbox in which a bundle runs; test_bundle has it."""
    monkeypatch.setattr(apps, "_verify", lambda _draft, _key: ([], None))


def _release(workspace: Workspace, part: Part, **more: Any) -> AppRelease:
    return release_app(workspace, Order("demo", more.pop("entry", ENTRY), [part], **more), _silent)


def _check(workspace: Workspace) -> Releases:
    """Hold everything that the file names against the disk."""
    releases = read_releases(workspace, "demo")
    for one in releases.versions:
        assert sha256(bundle_path(workspace, "demo", one.version).read_bytes()) == one.bundle.sha256
        assert sha256(evidence_path(workspace, "demo", one.version).read_bytes()) == one.evidence_sha256
    return releases


def test_a_release_is_verified_and_kept_with_its_evidence(
    workspace: Workspace, part: Part, keys: KeyPair, trust: Trust
) -> None:
    done = _release(workspace, part, key=signing_key(keys.private))
    assert done.passed and done.text == "demo version 1 is now on beta (was nothing): release"
    [version] = _check(workspace).versions
    report = verify(bundle_path(workspace, "demo", 1), replace(trust, at_least=1))
    assert (report.name, report.version, report.signer) == ("demo", 1, version.bundle.signer)
    evidence = json.loads(evidence_path(workspace, "demo", 1).read_text())
    assert {one["gate"] for one in evidence["gates"]} == {
        "max_accuracy_drop",
        "min_top1_agreement",
        "min_coverage",
    }
    assert evidence["verified"][0]["ran"].endswith("bit for bit") and evidence["cells"][CELL]["version"] == "3"
    assert list((workspace.artifacts / ".tmp").iterdir()) == []


def test_the_same_libraries_are_released_once(workspace: Workspace, parts: tuple[Part, ...], not_run: None) -> None:
    assert _release(workspace, parts[0]).what == "release"
    before = (workspace.root / "releases" / "demo.yaml").read_bytes()
    again = _release(workspace, parts[0])
    assert (again.what, again.version, again.text) == ("none", 1, "demo version 1 is already on beta")
    assert (workspace.root / "releases" / "demo.yaml").read_bytes() == before


def test_a_dry_run_releases_nothing(workspace: Workspace, part: Part, not_run: None) -> None:
    tried = _release(workspace, part, dry_run=True)
    assert tried.what == "dry run" and "would be on beta (now nothing); nothing was released" in tried.text
    assert "is now" not in tried.text
    assert not (workspace.root / "releases").exists()


@pytest.mark.parametrize("seed", range(3))
def test_channels_are_what_a_plain_model_says(
    workspace: Workspace, parts: tuple[Part, ...], not_run: None, seed: int
) -> None:
    draw, plain, made = random.Random(seed), {"beta": list[int](), "stable": list[int]()}, dict[int, Part]()
    for _ in range(12):
        deed = draw.choice(["release", "release", "promote", "rollback", "rollback stable"])
        if deed == "release":
            part = draw.choice(parts)
            if not plain["beta"] or made[plain["beta"][-1]] is not part:
                made[len(made) + 1] = part
                plain["beta"].append(len(made))
            assert _release(workspace, part).version == plain["beta"][-1]
        elif deed == "promote":
            if not plain["beta"]:
                with pytest.raises(StoreError, match="demo has no release on beta"):
                    promote_app(workspace, "demo", "beta", "stable", _silent)
            else:
                before = bundle_path(workspace, "demo", plain["beta"][-1]).stat()
                promote_app(workspace, "demo", "beta", "stable", _silent)
                assert bundle_path(workspace, "demo", plain["beta"][-1]).stat() == before, "the same bytes"
                plain["stable"] += plain["beta"][-1:] if plain["stable"][-1:] != plain["beta"][-1:] else []
        else:
            channel = "stable" if deed.endswith("stable") else "beta"
            if len(plain[channel]) < 2:
                with pytest.raises(StoreError, match=f"no earlier release on {channel}"):
                    rollback_app(workspace, "demo", channel, _silent)
            else:
                now = plain[channel].pop()
                done = rollback_app(workspace, "demo", channel, _silent)
                assert (done.version, done.replaces) == (plain[channel][-1], now)
        releases = _check(workspace)
        assert releases.channels == {name: kept[-1] for name, kept in plain.items() if kept}
        assert [one.version for one in releases.versions] == list(range(1, len(made) + 1))


def _killed_at(event: int, deed: Callable[[], object]) -> bool:
    """Do it in a child that kills itself at the nth change of a file. Returns whether it came so far."""
    child = os.fork()
    if child == 0:
        left = [event]

        def count(name: str, arguments: tuple[Any, ...]) -> None:
            writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if writes or name in ("os.rename", "os.remove", "os.mkdir", "os.truncate", "os.chmod"):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            deed()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("what", ["release", "promote", "rollback"])
def test_killed_at_any_change_of_a_file_the_former_release_is_whole(
    workspace: Workspace, parts: tuple[Part, ...], not_run: None, what: str
) -> None:
    _release(workspace, parts[0])
    if what == "rollback":
        _release(workspace, parts[1])
    deed = {
        "release": lambda: _release(workspace, parts[1]),
        "promote": lambda: promote_app(workspace, "demo", "beta", "stable", _silent),
        "rollback": lambda: rollback_app(workspace, "demo", "beta", _silent),
    }[what]
    before = _check(workspace)
    for event in range(100):
        if not _killed_at(event, deed):
            break
        now = _check(workspace)
        assert (
            now.versions[: len(before.versions)] == before.versions
            and now.changes[: len(before.changes)] == before.changes
        )
        if now != before:  # it was done, and only what follows was cut off
            assert len(now.changes) == len(before.changes) + 1
            break
    assert 1 < event < 99
    after = _check(workspace)
    assert (
        after.channels == {"release": {"beta": 2}, "promote": {"beta": 1, "stable": 1}, "rollback": {"beta": 1}}[what]
    )
    assert [path.name for path in (workspace.root / "releases").glob(".*")] == []


_KILLER = """\
import os, signal, sys
if sys.argv[1:2] != ["-c"]:
    left = [int(os.environ["KILLED_AT"])]
    def count(name, arguments):
        writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        changes = ("os.rename", "os.remove", "os.mkdir", "os.link", "os.symlink", "os.chmod", "sqlite3.connect")
        if writes or name in changes:
            if isinstance(arguments[0], str) and os.path.abspath(arguments[0]).startswith(os.environ["KILLED_IN"]):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
"""


def test_killed_inside_dvc_the_former_release_is_whole_and_the_next_one_works(
    workspace: Workspace,
    parts: tuple[Part, ...],
    not_run: None,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DVC's own process dies at changes of files that a seed draws, from the first to the last."""
    (workspace.root / "dvc.yaml").write_text("stages: {}\n")
    dvc.initialize(workspace)
    _release(workspace, parts[0])
    before, hook = _check(workspace), tmp_path_factory.mktemp("hook")
    (hook / "sitecustomize.py").write_text(_KILLER)
    draw, event = random.Random(15), 0
    while True:
        with monkeypatch.context() as patch:
            for name, value in (("PYTHONPATH", hook), ("KILLED_AT", event), ("KILLED_IN", workspace.root)):
                patch.setenv(name, str(value))
            try:
                assert _release(workspace, parts[1]).version == 2
                break
            except StoreError as error:
                assert "dvc add" in str(error), error
        assert _check(workspace) == before, event
        event += draw.randint(4, 16)
    assert event > 5, "it was never killed"
    after = _check(workspace)
    assert after.channels == {"beta": 2}
    for version in after.versions:
        path = bundle_path(workspace, "demo", version.version)
        content = path.read_bytes()
        path.unlink()
        assert restore_bundle(workspace, "demo", version).read_bytes() == content, "it is in DVC's cache"


CARD = scorecard()
ON_GPU = replace(CARD, gpu=GpuNumbers(compile_ms=100.0, open_ms=10.0, copy_in_ms=0.25, copy_out_ms=0.5))


def _busy(low_ms: float, high_ms: float) -> Scorecard:
    busy = replace(latency(badges=("others used 79%",)), low_ms=low_ms, high_ms=high_ms)
    return replace(CARD, latency=latency_by_part(busy))


@pytest.mark.parametrize(
    ("card", "gates", "said"),
    [
        (_busy(0.9, 1.3), {"max_latency_ms": 1.1}, "disturbed (others used 79%): measure again with 'tvmflow run CELL"),
        (_busy(0.9, 1.3), {"max_latency_ms": 0.5}, "median latency in ms is 1.3, at most 0.5"),
        (CARD, {"min_accuracy": 0.95}, "accuracy is 0.9, at least 0.95"),
        (replace(CARD, accuracy=None), {"min_accuracy": 0.5}, "accuracy is not measured"),
        (replace(CARD, accuracy=accuracy(0.8, 0.9)), {}, "accuracy drop from the source is 0.1, at most 0.005"),
        (replace(CARD, agreement=replace(AGREEMENT, top1_agreement=0.9)), {}, "top-1 agreement is 0.9, at least 0.99"),
        (replace(CARD, coverage=0.5), {}, "share of measured schedules is 0.5, at least 0.95"),
        (CARD, {"max_latency_ms": 0.5}, "median latency in ms is 1, at most 0.5"),
        (CARD, {"max_cold_start_ms": 2.0}, "cold start in ms is 3, at most 2"),
        (replace(CARD, first_run_ms=(5.0, 9.0, 7.0)), {"max_first_run_ms": 6.0}, "first run in ms is 7, at most 6"),
        (CARD, {"max_first_run_ms": 6.0}, "first run in ms is not measured, at most 6"),
        (ON_GPU, {"max_gpu_compile_ms": 90.0}, "opening without cached programs in ms is 100, at most 90"),
        (ON_GPU, {"max_gpu_open_ms": 9.0}, "opening with cached programs in ms is 10, at most 9"),
        (ON_GPU, {"max_gpu_copy_out_ms": 0.1}, "copy of the outputs from the GPU in ms is 0.5, at most 0.1"),
        (replace(CARD, memory_bytes=5_000_000), {"max_memory_mb": 4.0}, "memory of a process in MB is 5, at most 4"),
        (CARD, {"max_library_mb": 0.01}, "library in MB is 0.05, at most 0.01"),
    ],
)
def test_each_gate_refuses_by_itself(card: Scorecard, gates: dict[str, float], said: str) -> None:
    assert all(one.passed for one in judge_cell(CELL, CARD, 50_000, Gates()))
    failed = [one for one in judge_cell(CELL, card, 50_000, Gates(**gates)) if not one.passed]  # type: ignore[arg-type]
    assert len(failed) == 1 and said in failed[0].reason and CELL in failed[0].reason
    off = Gates(max_accuracy_drop=None, min_top1_agreement=None, min_coverage=None)
    assert judge_cell(CELL, card, 50_000, off) == []


def test_a_doubtful_cell_is_never_released() -> None:
    off = Gates(max_accuracy_drop=None, min_top1_agreement=None, min_coverage=None)
    (failed,) = judge_cell(CELL, replace(CARD, warnings=(CALIBRATED_ON_NOISE,)), 50_000, off)
    assert not failed.passed and failed.reason == f"{CELL}: {CALIBRATED_ON_NOISE.text} (no_warnings)"


def test_the_bundle_has_a_gate(workspace: Workspace, part: Part, not_run: None) -> None:
    assert judge_bundle(10**6, Gates(max_bundle_mb=1.0))[0].passed and judge_bundle(10**9, Gates()) == []
    done = _release(workspace, part, entry=AppEntry(cells=(CELL,), gates=Gates(max_bundle_mb=0.01)))
    assert not done.passed and done.reasons[0].startswith("the bundle: bundle in MB is")
    assert not (workspace.root / "releases").exists()


def test_a_cell_in_quarantine_is_not_released(workspace: Workspace, part: Part, not_run: None) -> None:
    held = Held(cell=CELL, reason="wrong outputs", issue="https://example.org/7", until=date.max)
    hold(workspace, held)
    assert _release(workspace, part).reasons == (held.text,) and not (workspace.root / "releases").exists()
    hold(workspace, held.model_copy(update={"until": date(2020, 1, 1)}))
    assert _release(workspace, part).passed


def test_all_reasons_are_told(workspace: Workspace, part: Part, not_run: None) -> None:
    entry = AppEntry(cells=(CELL,), gates=Gates(min_accuracy=1.0, max_latency_ms=0.1))
    done = _release(workspace, part, entry=entry, missing=("other@local-cpu:int8 has no champion",))
    assert [reason.split()[0] for reason in done.reasons] == ["other@local-cpu:int8", f"{CELL}:", f"{CELL}:"]


def test_a_bundle_that_does_not_verify_is_not_released(
    workspace: Workspace, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvmflow.support.errors import BundleError

    def refuse(*_arguments: object) -> None:
        raise BundleError("its outputs are others")

    monkeypatch.setattr(apps, "verify", refuse)
    done = _release(workspace, part)
    assert (
        done.reasons == ("the bundle is refused: its outputs are others",)
        and not (workspace.root / "releases").exists()
    )


def test_a_cell_that_cannot_ship_is_a_reason(workspace: Workspace, part: Part, not_run: None) -> None:
    done = _release(workspace, part, entry=AppEntry(cells=(CELL,), abis=("arm64-v8a",)))
    assert len(done.reasons) == 1 and "no cell is for arm64-v8a" in done.reasons[0]
    done = _release(workspace, part, entry=AppEntry(cells=(CELL,), abis=("arm64",)))
    assert done.reasons == ("no ABI 'arm64'",)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data | {"app": "other"},
        lambda data: data | {"versions": []},
        lambda data: data | {"more": 1},
        lambda data: data | {"versions": data["versions"] * 2},
        lambda data: data | {"changes": [data["changes"][0] | {"what": "rollback"}]},
        lambda data: data | {"changes": [data["changes"][0] | {"version": 7}]},
        lambda data: [data],
    ],
)
def test_a_damaged_file_is_one_error(
    workspace: Workspace, part: Part, not_run: None, change: Callable[[Any], Any]
) -> None:
    _release(workspace, part)
    path = workspace.root / "releases" / "demo.yaml"
    path.write_text(yaml.safe_dump(change(yaml.safe_load(path.read_text()))))
    with pytest.raises(StoreError, match=r"demo\.yaml is damaged") as error:
        read_releases(workspace, "demo")
    assert error.value.hint.endswith("'git checkout releases/demo.yaml'")


def test_a_bundle_that_is_gone_comes_back_or_is_missed(
    workspace: Workspace, parts: tuple[Part, ...], not_run: None
) -> None:
    for part in parts[:2]:
        _release(workspace, part)
    first = read_releases(workspace, "demo").numbered(1)
    data = bundle_path(workspace, "demo", 1).read_bytes()
    bundle_path(workspace, "demo", 1).write_bytes(b"another")
    with pytest.raises(StoreError, match="is not in DVC's cache"):
        rollback_app(workspace, "demo", "beta", _silent)
    assert read_releases(workspace, "demo").channels == {"beta": 2}
    cached = workspace.root / ".dvc" / "cache" / "files" / "md5" / first.bundle.md5[:2] / first.bundle.md5[2:]
    cached.parent.mkdir(parents=True)
    cached.write_bytes(data)
    rollback_app(workspace, "demo", "beta", _silent)
    assert _check(workspace).channels == {"beta": 1}


@pytest.mark.parametrize(
    ("apps_block", "said"),
    [
        ("a: {cells: []}", "apps.a.cells"),
        ("a: {cells: [nobody]}", "apps.a.cells: no cell 'nobody'"),
        ("a: {cells: [x@local-cpu:float32]}", "unknown model 'x'"),
        ("a/b: {cells: [x]}", "is not safe"),
        ("a: {cells: [x], gates: {min_accuracy: 2}}", "apps.a.gates.min_accuracy"),
        ("a: {cells: [x], chanel: beta}", "chanel"),
    ],
)
def test_apps_in_params_are_checked(tmp_path: Path, apps_block: str, said: str) -> None:
    (tmp_path / "params.yaml").write_text(f"apps:\n  {apps_block}\n")
    with pytest.raises(ParamsError, match=said):
        load_params(tmp_path / "params.yaml")

"""Test that each file is hashed once per run, and that every change to it is detected."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.pipeline.fake_stages import NoSettings
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace, workspace_at
from tvmflow.pipeline.record import RECORD_NAME
from tvmflow.pipeline.stage import AnyStage, Stage, StageContext, no_limits
from tvmflow.pipeline.store import Plan, Store
from tvmflow.support.digests import Digests

pytestmark = pytest.mark.heavy

SIZE = 100_000
NAMES = ("fetch", "import_model", "quantize", "graph_pack", "tune", "build", "deploy", "evaluate")
SETTLED_S = 0.06


def _make(context: StageContext[Any, Any]) -> dict[str, Any]:
    (context.out / "weights").write_bytes(context.out.name.encode()[:1] * SIZE)
    (context.out / "unread").write_bytes(b"u" * SIZE)
    time.sleep(SETTLED_S)
    return {}


def _stage(name: str, before: str | None) -> AnyStage:
    inputs = {before: ("weights",)} if before else {}
    return Stage(name, lambda _w, _c: NoSettings(), no_limits, lambda _s: (), _make, inputs=inputs)


STAGES = {name: _stage(name, before) for name, before in zip(NAMES, (None, *NAMES), strict=False)}


@dataclass
class Walk:
    """What a flow does: it plans a stage, a process of its own makes it, and each gets to know what the other read."""

    root: Path

    def __post_init__(self) -> None:
        self.workspace, self.processes = Workspace(self.root), 0

    @property
    def cell(self) -> Cell:
        return self.workspace.params.cell("digits")

    @property
    def bytes_read(self) -> int:
        return self.workspace.digests.bytes_read + self.processes

    def run(self, name: str) -> str:
        Store(self.workspace, STAGES).plan(name, self.cell)
        process = Workspace(self.root)
        process.digests.learn(json.loads(json.dumps(self.workspace.digests.to_json())))
        outcome = Store(process, STAGES).ensure(name, self.cell)[1]
        self.workspace.digests.learn(json.loads(json.dumps(process.digests.to_json())))
        self.processes += process.digests.bytes_read
        return outcome


def test_a_walk_reads_every_output_once(make_workspace: Callable[..., Path]) -> None:
    """It was 8 times for 8 stages, in the walk and in each stage's process: quadratic in the number of stages."""
    walk = Walk(make_workspace())
    assert {walk.run(name) for name in NAMES} == {"made"}
    outputs = len(NAMES) * 2 * SIZE
    assert walk.bytes_read == outputs
    assert {walk.run(name) for name in NAMES} == {"hit"}
    assert walk.bytes_read == outputs
    again = Walk(walk.root)  # another process knows nothing
    assert {again.run(name) for name in NAMES} == {"hit"}
    assert again.bytes_read == outputs


def test_a_stage_alone_looks_at_its_outputs_and_at_what_it_reads(make_workspace: Callable[..., Path]) -> None:
    walk = Walk(make_workspace())
    for name in NAMES:
        walk.run(name)
    alone = Workspace(walk.root)
    assert Store(alone, STAGES).ensure("evaluate", walk.cell)[1] == "hit"
    assert alone.digests.bytes_read == 2 * SIZE + (len(NAMES) - 1) * SIZE


def test_damage_is_seen_within_a_walk_though_the_bytes_were_believed_before(
    make_workspace: Callable[..., Path],
) -> None:
    walk = Walk(make_workspace())
    for name in NAMES:
        walk.run(name)
    weights = walk.workspace.folder("quantize", walk.cell) / "weights"
    times = weights.stat()
    weights.write_bytes(b"z" * SIZE)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    plan = Store(walk.workspace, STAGES).plan("quantize", walk.cell)
    assert isinstance(plan, Plan) and plan.reason == "weights was altered"
    assert not isinstance(Store(walk.workspace, STAGES).plan("graph_pack", walk.cell), Plan)
    assert walk.run("quantize") == "made" and walk.run("graph_pack") == "hit"


def test_what_a_stage_does_not_read_may_be_damaged(make_workspace: Callable[..., Path]) -> None:
    """Its key holds the digests of what it reads; the stage that owns the file is the one to mend it."""
    walk = Walk(make_workspace())
    for name in NAMES:
        walk.run(name)
    (walk.workspace.folder("fetch", walk.cell) / "unread").write_bytes(b"damaged")
    assert walk.run("import_model") == "hit"
    assert walk.run("fetch") == "made"


@pytest.mark.parametrize("lost", ["weights", RECORD_NAME])
def test_a_lost_input_is_waited_for(make_workspace: Callable[..., Path], lost: str) -> None:
    walk = Walk(make_workspace())
    for name in NAMES:
        walk.run(name)
    (walk.workspace.folder("tune", walk.cell) / lost).unlink()
    waits = Store(walk.workspace, STAGES).plan("build", walk.cell)
    assert not isinstance(waits, Plan) and waits.waits_for == "tune"


EDITS = {
    "write": lambda path, content: path.write_bytes(content),
    "write and set the old time": lambda path, content: _write_with_old_time(path, content),
    "put another file in its place": lambda path, content: _replace(path, content),
    "write in the middle": lambda path, content: _write_inside(path, content),
    "wait": lambda path, content: time.sleep(SETTLED_S),
    "nothing": lambda path, content: None,
}


def _write_with_old_time(path: Path, content: bytes) -> None:
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _replace(path: Path, content: bytes) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(content)
    times = path.stat()
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(other, path)


def _write_inside(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(1)
        file.write(content[:1])


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.tuples(st.sampled_from(sorted(EDITS)), st.sampled_from([b"aaaa", b"bbbb", b"abab"])), max_size=12))
def test_a_digest_is_the_one_of_the_bytes_now(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[str, bytes]]
) -> None:
    """Also when a file of the same size is written within the same tick of the clock as the one before."""
    path = tmp_path_factory.mktemp("file") / "data"
    path.write_bytes(b"0000")
    digests, told = Digests(), Digests()
    for name, content in edits:
        EDITS[name](path, content)
        expected = hashlib.sha256(path.read_bytes()).hexdigest()
        assert digests.sha256_of(path) == expected
        told.learn(digests.to_json())
        assert told.sha256_of(path) == expected


def test_a_process_has_one_workspace_for_a_folder(tmp_path: Path) -> None:
    assert workspace_at(tmp_path) is workspace_at(Path(str(tmp_path)))
    assert workspace_at(tmp_path) == Workspace(tmp_path)


# -- kept for the next process ---------------------------------------------------------------------------------------


def _kept(root: Path) -> Digests:
    digests = Digests()
    digests.keep_in(root / "artifacts" / ".digests.json")
    return digests


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Return a file whose digest an earlier process kept."""
    path = tmp_path / "artifacts" / "fetch" / "weights"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"a" * SIZE)
    time.sleep(SETTLED_S)
    first = _kept(tmp_path)
    assert first.sha256_of(path) == hashlib.sha256(b"a" * SIZE).hexdigest() and first.bytes_read == SIZE
    first.save()
    return path


def test_the_next_process_reads_a_file_only_if_it_changed(weights: Path, tmp_path: Path) -> None:
    second = _kept(tmp_path)
    assert second.sha256_of(weights) == hashlib.sha256(b"a" * SIZE).hexdigest() and second.bytes_read == 0
    times = weights.stat()
    weights.write_bytes(b"b" * SIZE)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # as `cp --preserve` and `touch -r` do
    assert _kept(tmp_path).sha256_of(weights) == hashlib.sha256(b"b" * SIZE).hexdigest()
    weights.unlink()
    with pytest.raises(FileNotFoundError):
        _kept(tmp_path).sha256_of(weights)


def test_who_asks_for_it_reads_all_files_again(weights: Path, tmp_path: Path) -> None:
    digests = _kept(tmp_path)
    digests.sha256_of(weights)
    digests.forget()
    assert digests.sha256_of(weights) and digests.bytes_read == SIZE


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"artifacts/fetch/weights": 1}', '{"artifacts/fetch/weights": [1, 2]}']
)
def test_a_damaged_file_of_digests_costs_time_only(text: str, weights: Path, tmp_path: Path) -> None:
    kept = tmp_path / "artifacts" / ".digests.json"
    kept.write_text(text)
    digests = _kept(tmp_path)
    assert digests.sha256_of(weights) == hashlib.sha256(b"a" * SIZE).hexdigest() and digests.bytes_read == SIZE
    digests.save()
    assert list(json.loads(kept.read_text())) == ["artifacts/fetch/weights"]


def test_digests_of_files_that_are_gone_are_not_kept(weights: Path, tmp_path: Path) -> None:
    other = weights.with_name("other")
    weights.rename(other)
    time.sleep(SETTLED_S)
    digests = _kept(tmp_path)
    digests.sha256_of(other)
    digests.save()
    assert list(json.loads((tmp_path / "artifacts" / ".digests.json").read_text())) == ["artifacts/fetch/other"]

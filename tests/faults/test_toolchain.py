"""Test toolchain failures: compilers that are missing, crash, hang or lack space are never the fault of a schedule."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.here import here
from tests.search_rules import QUICK_RULES, changed
from tvmflow.backends.cpu import CpuBackend
from tvmflow.ir.tir.workloads import Workload
from tvmflow.support.errors import StageError, StoreError, ToolchainError
from tvmflow.support.progress import silent
from tvmflow.targets.resolve import ResolvedTarget, host_target
from tvmflow.tuning.measure import build_pool as builder
from tvmflow.tuning.measure.build_pool import BuildPool, BuildRequest, Built
from tvmflow.tuning.measure.canary import canary_workload
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import (
    COMPILE_ERROR,
    ILLEGAL_SCHEDULE,
    OK,
    UNKNOWN,
    TuningRecord,
    append_record,
    read_records,
)
from tvmflow.tuning.search.search import tune
from tvmflow.tuning.search.state import TuneReport

TARGET = host_target()
BACKEND = CpuBackend(TARGET)
KERNEL = canary_workload()
_match = BACKEND.template_for(KERNEL.function)
assert _match is not None
TEMPLATE, KNOBS = _match[0].name, _match[1]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_PAUSES_S", (0.0, 0.01))


class Compiler:
    """A compiler of shell: it does what the file beside it says, and then calls g++."""

    def __init__(self, folder: Path) -> None:
        self.says, self.path = folder / "says.sh", folder / "cc"
        self.path.write_text(f'#!/bin/sh\n. {self.says}\nexec g++ "$@"\n')
        self.path.chmod(0o755)
        self.says.write_text("")
        self.target: ResolvedTarget = replace(TARGET, cc=str(self.path))

    def will(self, script: str) -> None:
        """Do this from now on; `when N` is true at the Nth call that links, `kernel` where it links no small kernel."""
        count = self.says.with_name("count")
        count.write_text("")
        self.says.write_text(
            f'case "$1" in --version) exec g++ --version;; esac\necho >> {count}\n'
            f"when() {{ [ $(wc -l < {count}) = $1 ]; }}\n{script}\n"
        )


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BuildPool, Compiler]]:
    """One process that builds, for all tests that only change what the compiler does."""
    folder = tmp_path_factory.mktemp("shared")
    compiler = Compiler(folder)
    with _pool(compiler.target, folder / "pool") as pool:
        yield pool, compiler


@contextlib.contextmanager
def _pool(target: ResolvedTarget, folder: Path, timeout_s: float = 60.0) -> Iterator[BuildPool]:
    folder.mkdir(exist_ok=True)
    with BuildPool(1, target, folder, timeout_s) as pool:
        yield pool


def _build(pool: BuildPool) -> Built:
    return pool.build(KERNEL, TEMPLATE, KNOBS[0]).result(timeout=300)


BROKEN = {
    "refuses": "exit 1",
    "cannot make a temporary file": 'echo "Cannot create temporary file in /tmp/: No space left on device" >&2; exit 1',
    "is of another architecture": 'echo "Relocations in generic ELF (EM: 62)" >&2; exit 1',
    "is killed": "kill -9 $$",
    "has no linker": 'echo "collect2: fatal error: cannot find ld" >&2; exit 1',
}


def test_a_machine_that_cannot_build_is_said_and_no_schedule_blamed(shared: tuple[BuildPool, Compiler]) -> None:
    pool, compiler = shared
    for name, script in BROKEN.items():
        compiler.will(script)
        pool._host_failure = None
        with pytest.raises(ToolchainError, match="cannot compile a kernel that is known to be correct"):
            _build(pool)
        assert pool._host_failure is not None, name
    compiler.will("")
    pool._host_failure = None
    assert _build(pool).status == OK, "the same process builds again"
    hidden = compiler.path.rename(compiler.path.with_name("hidden"))
    with pytest.raises(ToolchainError, match="no compiler"):
        _build(pool)
    with pytest.raises(ToolchainError):  # at once: nothing more is tried
        pool.build(KERNEL, TEMPLATE, KNOBS[1]).result(timeout=5)
    hidden.rename(compiler.path)
    pool._host_failure = None


def test_what_fails_once_is_built_again(shared: tuple[BuildPool, Compiler]) -> None:
    pool, compiler = shared
    for script in ("when 1 && kill -9 $$", "when 1 && exit 1", "{ when 1 || when 3; } && exit 1"):
        compiler.will(script)
        assert _build(pool).status == OK


def test_a_linker_that_always_fails_for_one_kernel_leaves_it_unknown(shared: tuple[BuildPool, Compiler]) -> None:
    """As where memory is enough for the small kernel only."""
    pool, compiler = shared
    compiler.will("{ when 1 || when 3 || when 5; } && kill -9 $$")
    built = _build(pool)
    assert built.status == UNKNOWN and built.error


def test_a_compiler_that_hangs_without_computing_blames_nobody(shared: tuple[BuildPool, Compiler]) -> None:
    pool, compiler = shared
    compiler.will("")
    assert _build(pool).status == OK
    process = pool._processes[-1]
    compiler.will("sleep 600")
    reply = process.ask(pool.to_json(BuildRequest(KERNEL, TEMPLATE, KNOBS[0]), pool.folder / "x.so"), 6.0)
    assert reply["status"] == UNKNOWN and "longer than 6 s" in reply["error"]
    compiler.will("")
    assert _build(pool).status == OK, "by another process"


def test_a_folder_that_is_emptied_or_removed_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    with _pool(TARGET, folder) as pool:
        assert _build(pool).status == OK
        shutil.rmtree(folder)
        assert _build(pool).status == OK
        shutil.rmtree(folder)
        folder.write_text("a file where the folder was")
        with pytest.raises(ToolchainError):
            _build(pool)


def test_a_process_that_is_killed_costs_nothing(tmp_path: Path) -> None:
    with _pool(TARGET, tmp_path / "pool") as pool:
        assert _build(pool).status == OK
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
            waiting = pool.build(KERNEL, TEMPLATE, KNOBS[0])
            time.sleep(0.05)
            for process in list(pool._processes):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.process.pid, number)
            assert waiting.result(timeout=300).status == OK


def test_processes_that_do_not_start_are_the_machines_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmflow.tuning.measure import build_process

    python = tmp_path / "python"
    with _pool(TARGET, tmp_path / "pool") as pool:
        for script in ("#!/bin/sh\nexit 3\n", "#!/bin/sh\nkill -9 $$\n", "no program at all", None):
            python.unlink(missing_ok=True)
            if script is not None:
                python.write_text(script)
                python.chmod(0o755)
            monkeypatch.setattr(build_process.sys, "executable", str(python))
            pool._host_failure = None
            with pytest.raises(ToolchainError):
                _build(pool)


def test_a_schedule_that_the_compiler_refuses_is_blamed(tmp_path: Path) -> None:
    """Its vectors are of a length that no vector has, which only the compiler finds."""
    with _pool(TARGET, tmp_path / "pool") as pool:
        assert pool.build(KERNEL, "no such template", {}).result(timeout=300).status == ILLEGAL_SCHEDULE
        assert pool.build(KERNEL, TEMPLATE, {**KNOBS[0], "c_tile": 3}).result(timeout=300).status in (
            OK,
            ILLEGAL_SCHEDULE,
        )
        broken = Workload("broken", "broken", 1, _not_to_be_compiled())
        built = pool.build(broken).result(timeout=300)
        assert built.status == COMPILE_ERROR and built.error, built


def _not_to_be_compiled() -> Any:
    from tvm.script import from_source
    from tvm.script import tirx as T

    source = """
@T.prim_func(s_tir=True)
def main(a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32")) -> None:
    for i in range(16):
        with T.sblock("made"):
            v = T.axis.spatial(16, i)
            b[v] = T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"), a[v], dtype="float32"
            )
"""
    return from_source(source, extra_vars={"T": T})


# -- the search --


RULES = changed(QUICK_RULES, trials_per_workload=6, replay_slowdown=0.1)


def _tune(
    target: ResolvedTarget,
    folder: Path,
    between: Callable[[int], None] = lambda _: None,
    function: Any = KERNEL.function,
) -> TuneReport:
    """Tune one kernel on a device of this process; `between` is called after each batch."""
    tuning_log = TuningLog(folder / "log.jsonl", "here", {"tvm": "1"})
    work = Workload("work", "work", 1, function)
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    return tune(
        [work],
        here,
        CpuBackend(target),
        RULES,
        tuning_log,
        scratch,
        silent,
        lambda _tasks, report: between(report.measured),
    )


def test_a_search_without_a_compiler_records_nothing_and_goes_on_later(compiler: Compiler, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    compiler.will("exit 1")
    with pytest.raises(ToolchainError):
        _tune(compiler.target, tmp_path)
    assert read_records(log) == []
    compiler.will("")
    with pytest.raises(ToolchainError, match="cannot compile"):
        _tune(compiler.target, tmp_path, lambda measured: compiler.will("exit 1") if measured else None)
    first = read_records(log)
    assert first and {record.status for record in first} == {OK}
    compiler.will("")
    report = _tune(compiler.target, tmp_path)
    records = read_records(log)
    assert records[: len(first)] == first and len(records) == RULES.trials
    assert {record.status for record in records} <= {OK} and report.reused == len(first)


def test_a_kernel_that_cannot_be_compiled_in_any_way_is_said_and_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="work cannot be compiled at all"):
        _tune(TARGET, tmp_path, function=_not_to_be_compiled())
    assert read_records(tmp_path / "log.jsonl") == []


def test_failures_that_older_versions_recorded_are_tried_again_once(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    old = [
        TuningRecord("work", "work", TEMPLATE, knobs, None, (), COMPILE_ERROR, "here", {"tvm": "1"}, "then")
        for knobs in KNOBS[:4]
    ]
    for record in old:
        append_record(log, record)
    lines = [{k: v for k, v in json.loads(line).items() if k != "error"} for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = _tune(TARGET, tmp_path)
    assert report.measured == RULES.trials and report.reused == 0
    assert [r.knobs for r in read_records(log) if r.status == OK][:4] == KNOBS[:4]
    again = _tune(TARGET, tmp_path)
    assert again.measured == 0 and again.reused == RULES.trials
    proven = replace(old[0], workload="other", error="refused")
    assert proven.proven and not old[0].proven


def test_a_log_without_room_ends_the_search_with_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    record = TuningRecord("work", "work", TEMPLATE, KNOBS[0], None, (1.0,), OK, "here", {"tvm": "1"}, "then")
    log = tmp_path / "log.jsonl"
    append_record(log, record)
    size = log.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for room in (0, 1, size // 2, size - 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, limits[1]))
            with pytest.raises(StoreError, match="tuning log"):
                append_record(log, record)
            assert log.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)
    append_record(log, record)
    assert read_records(log) == [record, record]
    folder = tmp_path / "a file"
    folder.write_text("")
    with pytest.raises(StoreError, match="tuning log"):
        append_record(folder / "log.jsonl", record)


def test_pools_leave_no_process_behind(tmp_path: Path) -> None:
    with _pool(TARGET, tmp_path / "pool") as pool:
        futures = [pool.build(KERNEL, TEMPLATE, knobs) for knobs in KNOBS[:3]]
        futures[0].result(timeout=300)
        processes = list(pool._processes)
    threading.Event().wait(0.1)
    assert processes and not any(process.alive for process in processes)

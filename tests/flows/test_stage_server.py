"""Test the stage server: one process per stage, of the code in the recipe key, that ends with its parent."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows import stage_server as servers
from flows.stage_server import StageProcess, stage_server, start_stage
from tasks.table import STAGES
from tvmflow.support.errors import StageCrashedError
from tvmflow.support.paths import CODE_ROOT

ARGUMENTS = ["build", "no_such_cell", "--root"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "params.yaml").write_text("models: {}\n", encoding="utf-8")
    return tmp_path


def _start(root: Path, stage: str = "build") -> StageProcess:
    with (root / "log").open("wb") as output:
        return start_stage([stage, *ARGUMENTS[1:], str(root)], [], output, prepare=True)


def _end(process: StageProcess) -> dict[str, object]:
    """Return the last word of a stage that has an error, when its process has ended."""
    with os.fdopen(process.events, encoding="utf-8") as lines:
        last = json.loads(list(lines)[-1])
    assert process.wait() not in (0, -signal.SIGKILL)
    assert isinstance(last, dict) and "no_such_cell" in json.dumps(last)
    return last


def _server() -> servers.StageServer:
    assert servers._server is not None
    return servers._server


def test_each_stage_has_a_process_of_its_own(root: Path) -> None:
    with stage_server():
        processes = [_start(root, stage) for stage in STAGES]
        ends = [_end(process) for process in processes]
    assert len({process.pid for process in processes}) == len(STAGES) and all(end == ends[0] for end in ends)


def test_a_stage_is_a_child_of_the_server_and_leads_a_session(root: Path, copied_code: Path) -> None:
    _let_stages_sleep(copied_code)
    with stage_server():
        process = _start(root)
        assert psutil.Process(process.pid).ppid() == _server().process.pid
        assert os.getsid(process.pid) == process.pid
        process.kill()
        os.close(process.events)


def test_many_threads_start_stages_side_by_side(root: Path) -> None:
    """Requests of many sizes, whose descriptors must not be mixed up."""
    roots = [root / f"{at}" for at in range(12)]
    failures = []

    def run(at: int) -> None:
        (roots[at] / "params.yaml").parent.mkdir()
        (roots[at] / "params.yaml").write_text(f"models: {{}}\nunknown_{at}: 1\n", encoding="utf-8")
        with (roots[at] / "log").open("wb") as output:
            process = start_stage(["build", "x", "--root", str(roots[at])], [["a" * 1000] * at * 40], output)
        with os.fdopen(process.events, encoding="utf-8") as lines:
            said = lines.read()
        process.wait()
        if f"unknown_{at}" not in said:
            failures.append((at, said))

    with stage_server():
        threads = [threading.Thread(target=run, args=(at,)) for at in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_a_server_that_died_is_replaced(root: Path) -> None:
    with stage_server():
        first = _server().process
        first.kill()
        first.wait()
        _end(_start(root))
        assert _server().process.pid != first.pid


def test_a_server_that_never_starts_is_one_clear_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers.sys, "executable", "/bin/false")
    with pytest.raises(StageCrashedError, match="did not start build no_such_cell: exit code 1"):
        _start(root)
    with stage_server(), pytest.raises(StageCrashedError, match="exit code 1"):
        _start(root)


def test_the_end_of_a_stage_is_told_as_it_was(root: Path, copied_code: Path) -> None:
    _let_stages_sleep(copied_code)
    with stage_server():
        for number in (signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM):
            process = _start(root)
            os.kill(process.pid, number)
            os.close(process.events)
            assert process.wait() == -number


def test_a_stage_whose_server_was_killed_counts_as_killed(root: Path, copied_code: Path) -> None:
    _let_stages_sleep(copied_code)
    with stage_server():
        process = _start(root)
        _server().process.kill()
        assert process.wait() == -signal.SIGKILL
        process.kill()
        os.close(process.events)
        _ends(process.pid)


def test_no_server_stays_behind(root: Path, copied_code: Path) -> None:
    _let_stages_sleep(copied_code)
    with stage_server():
        server = _server().process
    _ends(server.pid)
    process = _start(root)
    parent = psutil.Process(process.pid).ppid()
    assert servers._server is None
    process.kill()
    os.close(process.events)
    assert process.wait() == -signal.SIGKILL
    _ends(parent)


def test_server_and_stage_end_with_who_started_them(root: Path, copied_code: Path) -> None:
    _let_stages_sleep(copied_code)
    code = (
        "import os, pathlib, sys; from flows import stage_server as s\n"
        f"s.CODE_ROOT = pathlib.Path({str(copied_code)!r})\n"
        "with s.stage_server():\n"
        "    process = s.start_stage(sys.argv[1:], [], open(os.devnull, 'wb'))\n"
        "    print(s._server.process.pid, process.pid, flush=True); os._exit(9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *ARGUMENTS, str(root)], capture_output=True, text=True, check=False
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    for pid in pids:
        _ends(pid)


def _ends(pid: int) -> None:
    deadline = time.monotonic() + 60
    with contextlib.suppress(psutil.NoSuchProcess):  # it may end between any two looks
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def copied_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the code, which the processes of stages run."""
    for name in ("tasks", "tvmflow", "runtime"):
        shutil.copytree(CODE_ROOT / name, tmp_path / "code" / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(servers, "CODE_ROOT", tmp_path / "code")
    yield tmp_path / "code"


def _let_stages_sleep(code: Path) -> None:
    main = code / "tasks" / "__main__.py"
    begin = "    workspace = find_workspace(options.root)\n"
    text = main.read_text(encoding="utf-8")
    assert text.count(begin) == 1
    main.write_text(text.replace(begin, "    import time\n    time.sleep(600)\n"), encoding="utf-8")


def test_code_edited_after_the_server_imported_it_is_what_runs(root: Path, copied_code: Path) -> None:
    """The recipe key is of the files as they are when the stage begins: what runs must be the same."""
    build = copied_code / "tasks" / "build.py"
    with stage_server():
        _end(_start(root))
        build.write_text(build.read_text() + "\nraise SystemExit(77)\n", encoding="utf-8")
        process = _start(root)
        os.close(process.events)
        assert process.wait() == 77
        other = _start(root)
        os.close(other.events)
        assert other.wait() == 77

"""Fixtures of all tests: a separate home, small workspaces, and the digits cell, built once."""

from __future__ import annotations

import concurrent.futures.thread
import contextlib
import copy
import functools
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from filelock import FileLock

from tests.cpu_budget import CpuBudget
from tests.prefect_server import PrefectServer
from tvmflow.devices.emulation.system import EmulatedSystem, emulated_system
from tvmflow.support.errors import DeviceError

# make test draws the same cases every time, so that a red run is due to the change; make test-all draws others.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# The tests that run at once share the cores: a thread that waits must not compute meanwhile, as OpenMP's do by default.
# Read when PyTorch and TVM are loaded, here and in all that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")

REPOSITORY = Path(__file__).resolve().parent.parent
LEFT = Path(__file__).with_name("left_to_test_all.txt")
ALLOWED = os.sched_getaffinity(0)
CELL = "digits_torch@local-cpu:float32"
SLUG = CELL.replace("@", ".").replace(":", ".")
MACHINE_MAY_BE_BUSY = 1e9  # limit of what the other tests that run meanwhile decide: one that tests a limit sets it
HEAVY_FIXTURES = {"finished", "prefect_server", "emulated"}
NAMES_OF_SERVERS = (
    "PREFECT_API_URL",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_REGISTRY_URI",
    "TVM_TRACKER_HOST",
    "TVM_TRACKER_PORT",
    "TVMFLOW_ROOT",
    "DVC_STAGE",
    "DVC_ROOT",
)
PRIVACY = {
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
    "NO_COLOR": "1",
}


def examples(count: int) -> int:
    """Return how many random cases a property is tested with: all by `make test-all`, a third by `make test`."""
    return count if os.environ.get("HYPOTHESIS_PROFILE") == "default" else max(3, count // 3)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("cpu_budget_loops", "processor time that a whole run may take, in loops of tests/cpu_budget.py")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuBudget(config))


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that the processes of one run have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as heavy what asks for a finished workspace, a server or an emulated system, in whichever folder it is; as
    slow what `few` leaves out, and what left_to_test_all.txt lists.
    """
    _leave_to_test_all(items)
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if HEAVY_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("heavy")
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            families.setdefault(item.nodeid.split("[")[0], []).append(item)
    for name, cases in families.items():
        (kept,) = cases[0].get_closest_marker("few").args  # type: ignore[union-attr]
        for case in random.Random(name).sample(cases, len(cases) - kept):
            case.add_marker("slow")
    # One worker makes the finished workspace and goes on with what needs it; the other begins with the rest.
    items.sort(key=lambda item: "finished" not in getattr(item, "fixturenames", ()))


def _leave_to_test_all(items: list[pytest.Item]) -> None:
    """Mark as slow, and as left, what left_to_test_all.txt lists: tests, or functions with all of their cases."""
    listed = set(LEFT.read_text(encoding="utf-8").splitlines())
    for item in items:
        if listed & {item.nodeid, item.nodeid.split("[")[0]}:
            item.add_marker("left")
            item.add_marker("slow")


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the session a home, so that no test reads or writes the user's; git and DVC get what they need there."""
    home = tmp_path_factory.mktemp("home")
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvmflow-tests"
    before, threads = dict(os.environ), set(threading.enumerate())
    os.environ.update(PRIVACY)
    for name in NAMES_OF_SERVERS:
        os.environ.pop(name, None)
    os.environ["HOME"] = str(home)
    os.environ["TVMFLOW_LOCKS"] = str(shared_folder(tmp_path_factory) / "locks")  # of this run's processes only
    # Tool environments take minutes to install: once for all processes.
    os.environ.setdefault("TVMFLOW_CACHE", str(shared_folder(tmp_path_factory) / "cache"))
    for name in ("android-tools", "arm64", "armv7-tests", "zig"):
        _link_kept(Path(os.environ["TVMFLOW_CACHE"]) / name, kept / name)
    os.environ["DVC_SITE_CACHE_DIR"] = str(home / "dvc-site")
    os.environ["DVC_GLOBAL_CONFIG_DIR"] = os.environ["DVC_SYSTEM_CONFIG_DIR"] = str(home / "dvc-config")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    (home / ".gitconfig").write_text("[user]\n name = test\n email = test@localhost\n[init]\n defaultBranch = main\n")
    yield home
    os.environ.clear()
    os.environ.update(before)
    pools = set(concurrent.futures.thread._threads_queues)  # type: ignore[attr-defined]  # which Python ends by itself
    waiting = [t for t in threading.enumerate() if not t.daemon and t not in threads | pools]
    for thread in waiting:
        thread.join(10)
    alive = [t.name for t in waiting if t.is_alive()]
    assert not alive, f"these threads would keep Python from ending: {alive}"


def _link_kept(place: Path, kept: Path) -> None:
    """Let a folder of the session's cache be one that outlives it: what takes a download or a minute to make, and never
    changes.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not place.exists():
            with contextlib.suppress(OSError):  # no home to write to: made anew in each session
                kept.mkdir(parents=True, exist_ok=True)
                place.symlink_to(kept)


@pytest.fixture(scope="session")
def emulated(own_home: Path) -> EmulatedSystem:
    """Return the emulated arm64 system; skips where this machine cannot have one, and says why."""
    try:
        return emulated_system()
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def same_environment(own_home: Path) -> Iterator[None]:
    """Give the next test the environment and the cores that this one had: flows that run in this process set Prefect's
    variables.
    """
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    os.sched_setaffinity(0, ALLOWED)  # TVM binds a thread that computes to one core, and what it starts inherits that


@functools.cache
def _shipped_params() -> dict[str, Any]:
    params: dict[str, Any] = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    return params


def small_params() -> dict[str, Any]:
    """Return the repository's params with numbers that make a run quick; meaning unchanged."""
    params = copy.deepcopy(_shipped_params())
    for name in ("digits_torch", "digits_keras"):
        params["models"][name]["weights"]["train"]["epochs"] = 4
    params["cells"] = {name: params["cells"][name] for name in ("digits", "digits-keras")}
    params["tune"] |= {
        "trials_per_workload": 2,
        "min_gain_per_minute": 0.0,
        "measure_min_ms": 5.0,
        "measure_repeats": 2,
        "max_drift": MACHINE_MAY_BE_BUSY,
        "give_up_s": 5.0,
        "winograd_max_error": {},  # tested by themselves; here they would be more kernels to tune
    }
    params["evaluate"] |= {
        "turns": 8,
        "turn_ms": 5.0,
        "max_seconds": 2.0,
        "cold_starts": 1,
        "max_foreign_load": 1.0,
    }
    params["release"] |= {"compare_rounds": 6, "max_slowdown": MACHINE_MAY_BE_BUSY, "min_coverage": 0.5}
    params["flows"] |= {"retry_delay_s": 0.1}
    return params


@pytest.fixture
def make_workspace(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a workspace; `change(params)` may alter the parameters before."""

    def make(change: Callable[[dict[str, Any]], None] | None = None, name: str = "workspace") -> Path:
        root = tmp_path / name
        root.mkdir()
        params = small_params()
        if change:
            change(params)
        (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
        return root

    return make


def tvmflow(
    root: Path, *arguments: str, code: int | None = 0, timeout: float = 500
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a workspace. Asserts the exit code unless `code` is None."""
    done = subprocess.run(
        [sys.executable, "-m", "tvmflow", "--root", str(root), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=root,
        check=False,
    )
    assert code is None or done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def stage(
    root: Path, name: str, cell: str = CELL, code: int | None = 0, timeout: float = 500
) -> subprocess.CompletedProcess[str]:
    """Run one stage alone. Asserts the exit code unless `code` is None."""
    done = subprocess.run(
        [sys.executable, "-m", "tasks", name, cell, "--root", str(root)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=REPOSITORY,
        check=False,
    )
    assert code is None or done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone of the repository in which the digits cell ran all the way; tests must not change it."""
    root = shared_folder(tmp_path_factory) / "finished" / "clone"
    done = root.parent / "done"
    with FileLock(root.parent.with_suffix(".lock")):
        if not done.exists():
            _finish(root)
            done.touch()
    return root


def _finish(root: Path) -> None:
    from flows.pipeline import render  # loads all stages

    files = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    for name in filter(None, files):
        if (REPOSITORY / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, root / name)
    params = small_params()
    params["cells"] = {"digits": params["cells"]["digits"]}
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    (root / "dvc.yaml").write_text(render())
    for command in (["git", "init", "-q"], ["git", "add", "-A"], ["git", "commit", "-qm", "clone"]):
        subprocess.run(command, cwd=root, check=True)
    tvmflow(root, "init")
    tvmflow(root, "run", "digits")


@pytest.fixture
def copy_of_finished(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of the finished workspace that a test may change."""
    root = tmp_path / "copy"
    shutil.copytree(finished, root, symlinks=True, ignore=shutil.ignore_patterns(".prefect", "*.lock", "tmp"))
    shutil.copyfile(finished / "dvc.lock", root / "dvc.lock")
    return root


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for_port(port: int, longest_s: float) -> None:
    """Wait until somebody listens at a port of loopback."""
    deadline = time.monotonic() + longest_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.1)


def install_wheel(wheel: Path, folder: Path) -> None:
    """Let pip install a wheel into a folder, without a package index and without what it depends on."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)


@pytest.fixture(scope="session")
def prefect_server(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start one Prefect server for the session and return its address; `finished` ran with Prefect's own before."""
    server = PrefectServer(tmp_path_factory.mktemp("prefect"), free_port())
    try:
        server.start(120)
        yield server.address
    finally:
        server.kill()


@pytest.fixture
def with_prefect_server(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let flows of this test use the session's server instead of starting one each."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_server)
    return prefect_server

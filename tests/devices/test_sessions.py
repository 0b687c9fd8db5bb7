"""Test sessions with real trackers and servers on loopback: missing, busy and dying devices."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.conftest import SLUG
from tests.devices.local_tracker import local_tracker
from tvmflow.backends.backend import Backend
from tvmflow.backends.registry import backend_for
from tvmflow.codegen.compile import compile_module
from tvmflow.config.params import DeviceEntry, load_params
from tvmflow.devices.registry import open_session, transport_of
from tvmflow.devices.rpc.local import LocalServer, Served, local_server
from tvmflow.devices.rpc.tracker_requests import Request, connect, queue_of, request_session
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.devices.tracker_protocol import TrackerAddress
from tvmflow.support.errors import (
    DeviceBusyError,
    DeviceError,
    DeviceLostError,
    DeviceUnknownError,
    TrackerError,
    UsageError,
)

LOCAL = DeviceEntry(transport="local", key="local-cpu")
X = np.zeros((1, 1, 8, 8), np.float32)


@pytest.fixture(scope="module")
def tracker() -> Iterator[TrackerAddress]:
    with local_tracker("board", 2) as address:
        yield address


@pytest.fixture
def backend(finished: Path) -> Backend:
    return backend_for(load_params(finished / "params.yaml").targets["local-cpu"])


@pytest.fixture
def library(finished: Path) -> Path:
    return finished / "artifacts" / "build" / SLUG / "library.so"


def test_no_tracker_is_one_error_that_says_how_to_start_one() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(TrackerError, match="no RPC tracker") as error:
        connect(TrackerAddress("127.0.0.1", port))
    assert "rpc_tracker" in str(error.value) and error.value.retryable


def test_something_else_at_the_trackers_port_is_no_tracker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        import threading

        def reply() -> None:
            for _ in range(3):
                try:
                    peer, _ = server.accept()
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    peer.close()
                except OSError:
                    return

        threading.Thread(target=reply, daemon=True).start()
        with pytest.raises(TrackerError):
            connect(TrackerAddress("127.0.0.1", server.getsockname()[1]))


def test_a_server_with_fewer_threads_than_the_target_measures_nothing(backend: Backend) -> None:
    with local_tracker("slow", backend.target.threads - 1) as address:
        device = DeviceEntry(transport="tracker", key="slow", host=address.host, port=address.port)
        with (
            pytest.raises(
                DeviceError, match=f"{backend.target.threads - 1} of the {backend.target.threads} threads"
            ) as error,
            open_session(device, backend, SessionLimits(60.0, 10.0)),
        ):
            pass
    assert f"TVM_NUM_THREADS={backend.target.threads}" in str(error.value)


def test_an_unknown_key_lists_the_known_ones_and_does_not_hang(tracker: TrackerAddress) -> None:
    started = time.monotonic()
    with pytest.raises(DeviceUnknownError, match="no device with key 'phone'") as error:
        request_session(Request(tracker, "phone", 5.0), 600.0)
    assert "board" in str(error.value) and time.monotonic() - started < 300


def test_a_busy_device_is_waited_for_and_then_told(tracker: TrackerAddress) -> None:
    held = request_session(Request(tracker, "board", 10.0), 30.0)
    assert queue_of(tracker)["board"]["total"] == 1
    with pytest.raises(DeviceBusyError):
        request_session(Request(tracker, "board", 1.0), 10.0)
    del held
    assert request_session(Request(tracker, "board", 10.0), 10.0) is not None


def test_a_server_is_chosen_by_its_address(tracker: TrackerAddress) -> None:
    """The tracker hands out any: the others are kept until it gives the chosen one."""
    from tvm.rpc.server import Server

    at = (tracker.host, tracker.port)
    servers = [Server("127.0.0.1", 9600, 9690, key="pair", tracker_addr=at, silent=True) for _ in range(2)]
    try:
        device = DeviceEntry(transport="tracker", key="pair", host=tracker.host, port=tracker.port)
        deadline = time.monotonic() + 60
        while queue_of(tracker).get("pair", {"free": 0})["free"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        units = transport_of(device).units(device)
        assert len(units) == 2
        for unit in (*units, *units):
            assert request_session(Request(tracker, "pair", 20.0, unit), 30.0).unit == unit
    finally:
        for server in servers:
            server.terminate()


def test_the_address_comes_from_params_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TrackerAddress.find("h", 1) == TrackerAddress("h", 1)
    monkeypatch.setenv("TVM_TRACKER_HOST", "elsewhere")
    monkeypatch.setenv("TVM_TRACKER_PORT", "9191")
    assert TrackerAddress.find("h", 1) == TrackerAddress("elsewhere", 9191)
    monkeypatch.setenv("TVM_TRACKER_PORT", "x")
    with pytest.raises(UsageError):
        TrackerAddress.find(None, None)


def _servers() -> list[psutil.Process]:
    names = ("tvmflow.devices.rpc.local_server", "tests.devices.local_tracker")
    own = [p for p in psutil.process_iter(["cmdline", "ppid"]) if p.info["ppid"] == os.getpid()]
    return [p for p in own if any(name in (p.info["cmdline"] or []) for name in names)]


def test_an_external_tracker_serves_a_library(tracker: TrackerAddress, library: Path, backend: Backend) -> None:
    device = DeviceEntry(transport="tracker", key="board", host=tracker.host, port=tracker.port)
    with open_session(device, backend, SessionLimits(60.0, 20.0)) as session:
        assert session.model(library).run(X)[0].shape == (1, 10)


def test_everything_is_closed_again_also_after_an_error(library: Path, backend: Backend) -> None:
    before = len(_servers())
    with pytest.raises(KeyboardInterrupt), open_session(LOCAL, backend, SessionLimits(60.0, 20.0)):
        assert len(_servers()) == before + 1
        raise KeyboardInterrupt
    assert len(_servers()) == before
    with open_session(LOCAL, backend, SessionLimits(60.0, 20.0)) as session:
        assert session.model(library).run(X)[0].shape == (1, 10)


def _kill_session() -> None:
    """Kill the process on the device that serves the session, as a crash or a pulled plug would."""
    server = _servers()[-1]
    for child in server.children(recursive=True):
        child.kill()
    time.sleep(0.2)


def _script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_server_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = r"printf 'Traceback\nImportError: \033[31mno library\n\n' >&2"
    dies = _script(tmp_path / "dies", f"{said}; exit 3")
    with (
        pytest.raises(TrackerError, match=r"\(exit 3\): ImportError:  \[31mno library"),
        local_server("k", 1, served=Served((dies,))),
    ):
        pass
    hangs = _script(tmp_path / "hangs", f"printf '%01000d' 7 >&2; {said.replace('no', 'slow')}; exec sleep 60")
    with (
        pytest.raises(TrackerError, match="slow library") as error,
        local_server("k", 1, served=Served((hangs,), start_timeout_s=0.5)),
    ):
        pass
    assert len(error.value.found) < 500


def _has_zombie() -> bool:
    processes = psutil.process_iter(["ppid", "status"])
    return any(p.info["ppid"] == os.getpid() and p.info["status"] == psutil.STATUS_ZOMBIE for p in processes)


def test_a_server_that_dies_later_says_how(tmp_path: Path) -> None:
    dies = _script(tmp_path / "dies", """echo '{"port": 1}'; echo out of room >&2; exit 4""")
    with (
        pytest.raises(DeviceLostError, match=r"lost; the local server ended \(exit 4\): out of room"),
        local_server("k", 1, served=Served((dies,))),
    ):
        until = time.monotonic() + 10
        while not _has_zombie():
            assert time.monotonic() < until
            time.sleep(0.01)
        raise DeviceLostError("lost")


@pytest.mark.few(2)
@pytest.mark.parametrize("when", ["upload", "load", "run", "time", "copy"])
def test_a_server_that_dies_in_the_middle_is_a_lost_device(when: str, library: Path, backend: Backend) -> None:
    with open_session(LOCAL, backend, SessionLimits(60.0, 20.0)) as session:
        model = session.model(library)
        model.run(X)
        _kill_session()
        with pytest.raises(DeviceLostError) as error:
            _do(when, session, model, library)
        assert error.value.retryable and "local-cpu" in str(error.value)
    with open_session(LOCAL, backend, SessionLimits(60.0, 20.0)) as session:
        assert session.model(library).run(X)[0].shape == (1, 10)


def _do(when: str, session: DeviceSession, model: object, library: Path) -> None:
    from tvmflow.devices.session import RemoteModel

    assert isinstance(model, RemoteModel)
    {
        "upload": lambda: session.upload(library),
        "load": lambda: session.load(library),
        "run": model.invoke,
        "time": lambda: model.time_runs(3),
        "copy": lambda: session.tensor(X),
    }[when]()


def test_a_session_that_hangs_ends_with_its_timeout(library: Path, backend: Backend) -> None:
    with open_session(LOCAL, backend, SessionLimits(3.0, 20.0)) as session:
        model = session.model(library)
        for child in _servers()[-1].children(recursive=True):
            child.suspend()
        started = time.monotonic()
        with pytest.raises(DeviceLostError):
            model.run(X)
        assert time.monotonic() - started < 120


def test_a_trackers_server_closes_a_session_beyond_its_time(
    tracker: TrackerAddress, library: Path, backend: Backend
) -> None:
    device = DeviceEntry(
        transport="tracker", key="board", host=tracker.host, port=tracker.port, session_timeout_s=2.0
    )  # shorter than that of deploy
    message = r"session with device 'board' was closed after 2 s, while in use \(device 'board' failed while "
    with (
        pytest.raises(DeviceLostError, match=message),
        open_session(device, backend, SessionLimits(600.0, 20.0)) as session,
    ):
        model, begin = session.model(library), time.monotonic()
        while time.monotonic() < begin + 60:
            model.run(X)


def test_a_server_goes_on_after_a_session_died(tracker: TrackerAddress, library: Path, backend: Backend) -> None:
    device = DeviceEntry(transport="tracker", key="board", host=tracker.host, port=tracker.port)
    limits = SessionLimits(60.0, 20.0)
    with open_session(device, backend, limits) as session:
        model = session.model(library)
        _kill_session()
        with pytest.raises(DeviceLostError):
            model.run(X)
    with open_session(device, backend, limits) as session:
        assert session.model(library).run(X)[0].shape == (1, 10)


def test_two_uploads_of_one_name_do_not_overwrite_each_other(library: Path, backend: Backend) -> None:
    with open_session(LOCAL, backend, SessionLimits(60.0, 20.0)) as session:
        first, second = session.model(library), session.model(library)
        assert np.array_equal(first.run(X)[0], second.run(X)[0])


def test_the_servers_life_line(tmp_path: Path) -> None:
    """When the process that opened a session is killed, its tracker and server end too."""
    code = (
        "import time, sys\nfrom tvmflow.devices.rpc.local import local_server\n"
        "with local_server('k', 1) as server:\n    print(server.port, flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) > 0
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=120)
    assert alive == []


# -- other users of this machine --

_STRANGER = """
import encodings.idna, os, socket, struct, sys  # the last that this user can read
port, user = int(sys.argv[1]), int(sys.argv[2])
os.setuid(user)
with socket.create_connection(("127.0.0.1", port), timeout=20) as found:
    try:
        found.sendall(struct.pack("<ii", 0xFF271, len(sys.argv[3])) + sys.argv[3].encode())
        print(found.recv(4).hex())
    except OSError:
        print("closed")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with local_server("k", 1) as running:
        yield running


def _ask_as(user: int, server: LocalServer, key: str) -> str:
    command = [sys.executable, "-c", _STRANGER, str(server.port), str(user), key]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_nobody_runs_code_in_a_server_without_its_secret(server: LocalServer) -> None:
    """Not by the name of the device, which was the key, nor by a secret that is nearly right, nor as another user."""
    mismatch = struct.pack("<i", 0xFF271 + 2).hex()
    for key in (
        "client:k",
        "client:",
        f"client:{server.secret[:-1]}",
        f"client:{server.secret}x",
        f"server:{server.secret}",
    ):
        assert _ask_as(os.getuid(), server, key) == mismatch
    shown = [word for p in psutil.process_iter(["cmdline"]) for word in p.info["cmdline"] or []]
    assert server.secret not in " ".join(shown)
    if os.getuid() == 0:
        assert _ask_as(65534, server, f"client:{server.secret}") in ("", "closed"), "whoever has read the secret"


def test_silent_strangers_keep_nobody_waiting(server: LocalServer) -> None:
    with contextlib.ExitStack() as kept:
        for _ in range(8):
            kept.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        begun = time.monotonic()
        assert server.connect(60.0).get_function("testing.echo")(7) == 7
        assert time.monotonic() - begun < 8


# -- times of kernels --

_SUMS = """@T.prim_func
def main(x: T.Buffer((1,), "float32"), w: T.Buffer((ROWS, 256), "float32"), y: T.Buffer((ROWS,), "float32")):
    for i in range(ROWS):
        y[i] = T.float32(0)
        for j in range(256):
            y[i] = y[i] + x[0] * w[i, j]
"""


@pytest.mark.parametrize(("rows", "cold"), [(64, False), (4096, True)])
def test_a_kernel_with_large_weights_is_timed_with_weights_from_memory(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, cold: bool
) -> None:
    import tvm
    from tvm.script import from_source
    from tvm.script import tirx as T

    function = from_source(_SUMS.replace("ROWS", str(rows)), extra_vars={"T": T})
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    backend.export(compile_module(module, backend), tmp_path / "kernel.so")
    weights = np.random.default_rng(0).standard_normal((rows, 256), np.float32)
    flushed = []
    with open_session(LOCAL, backend, SessionLimits(60.0, 60.0)) as session:
        bench = session.bench([np.full(1, 2, np.float32), weights, np.zeros(rows, np.float32)])
        kernel = bench.load(tmp_path / "kernel.so")
        assert np.allclose(kernel.output(), 2 * weights.sum(1), atol=1e-3)
        timer = tvm.runtime.Module.time_evaluator

        def watched(*given: Any, **options: Any) -> Any:
            flushed.append("f_preproc" in options)
            return timer(*given, **options)

        monkeypatch.setattr(tvm.runtime.Module, "time_evaluator", watched)
        times = kernel.time(3, 1.0)
    assert len(times) == 3 and all(0 < one < 1 for one in times)
    assert flushed == [cold]

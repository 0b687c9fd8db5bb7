"""Fork a process for each stage with TVM imported: `python -m tasks.server N`, N a socket's file descriptor.

A request is a line of JSON: `arguments`, those of `python -m tasks`; `known`, file digests known to the caller;
`prepare`, whether to import a later stage's modules while this stage runs. Three file descriptors come with its first
byte: for progress and the end of the stage, as lines of JSON; for a line `pid N` and, when the process has ended, `exit
CODE`; and for its output. The server ends when the socket is closed and no stage runs. It has one Python thread, so
that forked processes inherit no held lock.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.__main__ import main as run_stage
from tasks.table import STAGES
from tvmflow.config.workspace import Workspace, workspace_at
from tvmflow.pipeline.recipe_key import code_of, forget_code
from tvmflow.support.own_packages import own_module
from tvmflow.support.tvm_import import prepare_import_of_tvm
from tvmflow.tracking.mlflow.address import sqlite_path
from tvmflow.tracking.mlflow.store import import_mlflow, open_mlflow

_IMPORTED = (
    "tvm.relax",
    "tvmflow.codegen.compile",
    "tvmflow.codegen.network.link",
    "tvmflow.quantization.precisions",
)


@dataclass(frozen=True)
class _Request:
    """The request of a stage; events, end, output: file descriptors."""

    arguments: list[str]
    known: list[list[Any]]
    prepare: bool
    events: int
    end: int
    output: int


def main() -> None:
    """Import, then fork for each request; in a stage's process, run that stage."""
    prepare_import_of_tvm()
    code = {name: _code(name) for name in STAGES}  # before the import below
    for module in _IMPORTED:
        with contextlib.suppress(Exception):  # the stage that needs it reports the error
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # existing pages stay shared with the stages
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    _redirect(1, os.dup(request.output))
    _redirect(2, request.output)
    arguments = [*request.arguments, "--events", str(request.events)]
    forget_code()
    name = request.arguments[0]
    if (
        code[name] is None or _code(name) != code[name]
    ):  # edited since: the recipe key would not match the imported code
        os.set_inheritable(request.events, True)
        os.execv(sys.executable, [sys.executable, "-P", "-m", own_module("tasks"), *arguments])  # noqa: S606
    run_stage(arguments, request.known)


def _code(stage: str) -> dict[str, str] | None:
    """Return the files and digests of a stage's code, None if it cannot be read."""
    try:
        return code_of(STAGES[stage].module, STAGES[stage].runs)
    except (OSError, SyntaxError, ValueError):
        return None


def _serve(requests: socket.socket) -> _Request | None:
    """Fork for each request; return it in the process of its stage, and None in the server at its end."""
    running: dict[
        int, tuple[int, int]
    ] = {}  # a descriptor of a process -> its number, and where its exit code is written
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    is_open = True
    while is_open or running:
        for descriptor, _event in poll.poll():
            if descriptor in running:
                poll.unregister(descriptor)
                _tell_end(descriptor, *running.pop(descriptor))
            elif (request := _receive(requests)) is None:
                poll.unregister(requests)
                is_open = False
            elif pid := os.fork():
                for one in (request.events, request.output):
                    os.close(one)
                process = os.pidfd_open(pid)
                running[process] = (pid, request.end)
                poll.register(process, select.POLLIN)
                if request.prepare:
                    _prepare_beside(request.arguments)
            else:
                os.setsid()
                os.write(request.end, b"pid %d\n" % os.getpid())
                requests.close()
                for one, (_pid, end) in running.items():
                    os.close(one)
                    os.close(end)
                os.close(request.end)
                return request
    return None


def _receive(requests: socket.socket) -> _Request | None:
    """Return the next request, None at the end of the socket."""
    line, given, _flags, _address = socket.recv_fds(requests, 1, 3, socket.MSG_CMSG_CLOEXEC)
    while line and not line.endswith(b"\n"):
        more = requests.recv(1 << 16)  # nobody sends the next one before this is answered with a process
        line = line + more if more else b""
    if not line:
        return None
    told = json.loads(line)
    return _Request(told["arguments"], told["known"], told["prepare"], *given)


def _tell_end(process: int, pid: int, end: int) -> None:
    _pid, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(end, b"exit %d\n" % os.waitstatus_to_exitcode(status))
    os.close(end)
    os.close(process)


def _prepare_beside(arguments: list[str]) -> None:
    """Import the modules of the recording stage next to the first stage, or next to the last one before it."""
    names = list(STAGES)
    at = names.index(arguments[0]) + 1
    workspace = workspace_at(Path(arguments[arguments.index("--root") + 1]))
    if workspace.is_variant:  # nothing of it is recorded
        return
    if at == 1 or (at < len(names) and STAGES[names[at]].has_metrics):
        with contextlib.suppress(Exception):  # the stage says what is wrong
            import_mlflow()
            gc.freeze()
            _make_records(workspace)


def _make_records(workspace: Workspace) -> None:
    """Make MLflow's database where there is none, in a process of its own: what is forked later inherits no
    connection to it.
    """
    path = sqlite_path(workspace)
    if path is None or path.exists():
        return
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    try:
        open_mlflow(workspace)
    finally:
        os._exit(0)


def _redirect(standard: int, descriptor: int) -> None:
    os.dup2(descriptor, standard)
    os.close(descriptor)


if __name__ == "__main__":
    main()

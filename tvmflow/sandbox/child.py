"""Run a function inside a sandbox: `python -m tvmflow.sandbox.child DESCRIPTOR`.

Drops its privileges first. Requests are lines of JSON on standard input, replies lines of JSON on the descriptor. The
first request contains the limits and a function; if that returns an object, later requests call its methods.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tvmflow.sandbox import syscalls
from tvmflow.sandbox.watcher import run_below_init, start_watched
from tvmflow.support.errors import TvmflowError, cause
from tvmflow.support.garbage import collect_rarely
from tvmflow.support.tvm_import import prepare_import_of_tvm

SCOPES_SIGNALS = 6  # version of Landlock from which on it refuses signals to others


def drop_privileges(policy: dict[str, Any], parent: int, tell: Callable[[dict[str, Any]], None]) -> list[str]:
    """Return the protections in effect, all that the kernel supports, in a new process that has them."""
    held = ["limits"]

    def apply(name: str, step: Callable[[], None]) -> None:
        if name not in policy["without"]:
            with contextlib.suppress(OSError):  # an older kernel, or a container; `held` says so
                step()
                held.append(name)

    syscalls.limits(policy["memory_bytes"], policy["cpu_s"], policy["processes"])
    syscalls.no_new_privileges()
    apply("namespaces", syscalls.enter_namespaces)
    start_watched(tell, policy, parent)
    if "namespaces" in held:
        apply("own root", lambda: syscalls.change_root(policy["root"], policy["reads"], policy["writes"]))
        run_below_init()
    lists = ["/"] if "own root" in held else []  # which has nothing else; Python looks modules up in lists
    apply("landlock", lambda: syscalls.landlock(policy["reads"], policy["writes"], lists))
    apply("capabilities", syscalls.drop_capabilities)
    sees_others = "namespaces" not in held and ("landlock" not in held or syscalls.landlock_version() < SCOPES_SIGNALS)
    apply("seccomp", lambda: syscalls.seccomp(os.getpid() if sees_others else None))
    return held


def place_of(error: BaseException) -> str:
    """Return file and line of tvmflow's own code in which an error came about."""
    place, trace = "an unknown place", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if (at := file.rfind("/tvmflow/")) >= 0:
            place = f"{file[at + 1 :]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def main() -> None:
    """Serve requests until standard input is closed."""
    replies = int(sys.argv[1])
    collect_rarely()
    prepare_import_of_tvm()

    def tell(event: dict[str, Any]) -> None:
        data = memoryview((json.dumps(event) + "\n").encode())
        while data:
            data = data[os.write(replies, data) :]

    first = json.loads(sys.stdin.buffer.readline())
    tell({"held": drop_privileges(first["policy"], first["parent"], tell)})
    kept: Any = None
    request = first
    while True:
        try:
            if "function" in request:
                module, name = request["function"].split(":")
                function = getattr(importlib.import_module(module), name)
            else:
                function = getattr(kept, request["method"])
            options = {"progress": lambda *text: tell({"progress": text})} if request["wants_progress"] else {}
            reply = function(**request["arguments"], **options)
            if "function" in request and not isinstance(reply, dict | list | str | int | float | None):
                kept, reply = reply, None
            tell({"reply": reply})
        except TvmflowError as error:
            tell({"error": error.to_json()})
        except Exception as error:
            if "TVMFLOW_DEBUG" in os.environ:
                import traceback

                traceback.print_exc()
            tell({"broke": cause(error), "at": place_of(error)})
        line = sys.stdin.buffer.readline()
        if not line:
            return
        request = json.loads(line)


if __name__ == "__main__":
    main()

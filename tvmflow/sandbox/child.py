"""Run a function inside a sandbox: `python -m tvmflow.sandbox.child DESCRIPTOR`.

Drops its privileges first. Requests are lines of JSON on standard input, replies lines of JSON on the descriptor. The
first request contains the limits and a function; if that returns an object, later requests call its methods.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tvmflow.sandbox import syscalls
from tvmflow.support.errors import TvmflowError, cause
from tvmflow.support.tvm_import import prepare_import_of_tvm


def drop_privileges(policy: dict[str, Any]) -> list[str]:
    """Apply every protection that the kernel supports and return those in effect."""
    held = ["limits"]
    syscalls.limits(policy["memory_bytes"], policy["cpu_s"], policy["processes"])
    syscalls.no_new_privileges()
    steps: tuple[tuple[str, Callable[[], None]], ...] = (
        ("landlock", lambda: syscalls.landlock(policy["reads"], policy["writes"])),
        ("namespaces", lambda: syscalls.namespaces(policy["writes"])),
        ("capabilities", syscalls.drop_capabilities),
        ("seccomp", syscalls.seccomp),
    )
    for name, step in steps:
        if name in policy["without"] or (name == "namespaces" and "landlock" in held):
            continue
        try:
            step()
            held.append(name)
        except OSError:
            pass  # an older kernel; `held` says so
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
    prepare_import_of_tvm()

    def tell(event: dict[str, Any]) -> None:
        data = memoryview((json.dumps(event) + "\n").encode())
        while data:
            data = data[os.write(replies, data) :]

    first = json.loads(sys.stdin.buffer.readline())
    held = drop_privileges(first["policy"])
    syscalls.die_with_parent(first["parent"])  # last: other credentials make the kernel forget it
    tell({"held": held})
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

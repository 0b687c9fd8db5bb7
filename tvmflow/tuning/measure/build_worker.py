"""Compile schedules for the tuner, one after the other, in a process that stays alive.

A line of JSON on standard input for each kernel, a line on standard output for each reply; the first line says that TVM
is there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.support.tvm_import import prepare_import_of_tvm

if TYPE_CHECKING:
    from tvmflow.backends.backend import Backend

_NO_MEMORY = ("bad_alloc", "out of memory", "cannot allocate memory")


def reply(request: dict[str, Any]) -> dict[str, Any]:
    """Build one kernel: under a template's knobs, under a trace, or plainly. Returns status, trace, digest, error.

    UNKNOWN where nothing can be said of the schedule: what the machine or the linker refuses is not its fault.
    """
    import tvm

    # These register the operators that kernels call.
    import tvmflow.passes.legalize.clip
    import tvmflow.passes.legalize.int8_lookup_tables
    import tvmflow.passes.legalize.narrow  # noqa: F401
    from tvmflow.backends.registry import backend_of
    from tvmflow.codegen.compile import compile_module
    from tvmflow.codegen.network.kernel_library import write_kernel
    from tvmflow.targets.resolve import from_json
    from tvmflow.tuning.records.record import COMPILE_ERROR, ILLEGAL_SCHEDULE, OK, UNKNOWN

    try:
        function = _function(request["function"])
        backend = backend_of(from_json(request["target"]))
        if request.get("trace") is None and not request.get("template"):
            backend = backend.plain
    except Exception as error:  # a file that is gone or cut short
        return {"status": UNKNOWN, "error": str(error)[-300:]}
    try:
        function, trace = _scheduled(function, request, backend)
    except (OSError, MemoryError) as error:
        return {"status": UNKNOWN, "error": str(error)[-300:]}
    except Exception as error:  # TVM raises its own types, RuntimeError, ValueError, TypeError and IndexError here
        return {"status": ILLEGAL_SCHEDULE, "error": str(error)[-300:]}
    try:
        module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        built = compile_module(module, backend)
    except Exception as error:  # whatever the compiler raises: this schedule cannot be built, unless memory ended
        hosts = isinstance(error, OSError | MemoryError) or any(text in str(error).lower() for text in _NO_MEMORY)
        return {"status": UNKNOWN if hosts else COMPILE_ERROR, "error": f"{type(error).__name__}: {str(error)[-300:]}"}
    if request["estimate"]:
        seconds = _estimate(Path(request["function"]), request, built, backend)
        return {"status": OK, "trace": trace, "digest": _digest(function), "estimate_s": seconds}
    try:
        if request["self_contained"]:
            write_kernel(Path(request["path"]), built, function, backend.target)
        else:
            backend.export(built, Path(request["path"]))
    except Exception as error:  # no linker, one that dies, or no room for what it writes
        return {"status": UNKNOWN, "error": str(error)[-300:]}
    return {"status": OK, "trace": trace, "digest": _digest(function)}


@functools.lru_cache(maxsize=8)
def _function(file: str) -> Any:
    """Return a workload's function; reading it takes a tenth of what compiling a candidate takes."""
    import tvm

    return tvm.ir.load_json(Path(file).read_text(encoding="utf-8"))


def _estimate(file: Path, request: dict[str, Any], built: Any, backend: Backend) -> float | None:
    """Return the estimated seconds of a compiled kernel. file: of its function before it was scheduled."""
    import tvm

    from tvmflow.targets.core_timing import core_of
    from tvmflow.tuning.cost_model.static_model import estimate_s

    function, assembly = tvm.ir.load_json(file.read_text(encoding="utf-8")), str(built.mod.inspect_source("asm"))
    core, threads = core_of(backend.target), backend.target.threads
    return estimate_s(function, request["template"], request["knobs"], assembly, core, threads)


def _scheduled(function: Any, request: dict[str, Any], backend: Backend) -> tuple[Any, Any]:
    """Return the scheduled kernel and its trace, None for the plain one."""
    from tvmflow.passes.kernel.apply_schedules import replay
    from tvmflow.schedules.registry import scheduled, template_named
    from tvmflow.tuning.measure.reference_kernel import plain
    from tvmflow.tuning.records.traces import trace_json

    if request.get("trace") is not None:
        return replay(function, request["trace"]).mod["main"], request["trace"]
    if not request.get("template"):
        return plain(function), None
    template = template_named(request["template"], backend.templates())
    if template is None:
        raise ValueError(f"no template {request['template']!r}")
    schedule = scheduled(function, template, request["knobs"])
    return schedule.mod["main"], trace_json(schedule)


def _digest(function: Any) -> str:
    return hashlib.sha256(function.script(show_meta=False).encode()).hexdigest()


def _cpu_s() -> float:
    """Return the processor time of this process and of what it started, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever TVM or a linker prints must not end up among the replies

    def say(found: dict[str, Any]) -> None:
        out.write(json.dumps({**found, "cpu_s": _cpu_s()}) + "\n")
        out.flush()

    prepare_import_of_tvm()
    try:
        import tvm  # noqa: F401

    except Exception as error:  # a damaged installation, no memory
        say({"error": f"{type(error).__name__}: {str(error)[-300:]}"})
        return
    say({})
    for line in sys.stdin:
        say(reply(json.loads(line)))


if __name__ == "__main__":
    main()

"""Compile schedules for the tuner, one after the other, in a long-lived process.

Reads one line of JSON per kernel from standard input and writes one line per reply to standard output. The first line
reports whether TVM could be imported.
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
    from tvmflow.ir.tvm_compat import PrimFunc

_NO_MEMORY = ("bad_alloc", "out of memory", "cannot allocate memory")


def build_kernel(request: dict[str, Any]) -> dict[str, Any]:
    """Build one kernel with template knobs, with a trace, or its reference kernel. Returns status, trace, digest,
    error.

    The status is UNKNOWN where nothing is known about the schedule: errors of the host or the linker are not its fault.
    """
    import tvm

    # These imports register the operators that kernels call.
    import tvmflow.passes.legalize.clip
    import tvmflow.passes.legalize.int8_lookup_tables
    import tvmflow.passes.legalize.narrow  # noqa: F401
    from tvmflow.backends.registry import backend_of
    from tvmflow.codegen.compile import compile_module
    from tvmflow.codegen.network.kernel_library import write_kernel
    from tvmflow.support.json_values import from_json
    from tvmflow.targets.resolve import ResolvedTarget
    from tvmflow.tuning.records.record import COMPILE_ERROR, ILLEGAL_SCHEDULE, OK, UNKNOWN

    try:
        function = _function(request["function"])
        backend = backend_of(from_json(ResolvedTarget, request["target"]))
        if request.get("trace") is None and not request.get("template"):
            backend = backend.plain
    except Exception as error:  # a missing or truncated file
        return {"status": UNKNOWN, "error": str(error)[-300:]}
    try:
        function, trace = _schedule_kernel(function, request, backend)
    except (OSError, MemoryError) as error:
        return {"status": UNKNOWN, "error": str(error)[-300:]}
    except Exception as error:  # TVM raises its own types, RuntimeError, ValueError, TypeError and IndexError here
        return {"status": ILLEGAL_SCHEDULE, "error": str(error)[-300:]}
    try:
        module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        built = compile_module(module, backend)
    except Exception as error:  # any compiler error; the schedule is at fault unless memory ran out
        is_host_error = isinstance(error, OSError | MemoryError) or any(
            text in str(error).lower() for text in _NO_MEMORY
        )
        return {
            "status": UNKNOWN if is_host_error else COMPILE_ERROR,
            "error": f"{type(error).__name__}: {str(error)[-300:]}",
        }
    if request["estimate"]:
        seconds = _estimate(Path(request["function"]), request, built, backend)
        return {"status": OK, "trace": trace, "digest": _digest(function), "estimate_s": seconds}
    try:
        if request["self_contained"]:
            write_kernel(Path(request["path"]), built, function, backend.target)
        else:
            backend.export(built, Path(request["path"]))
    except Exception as error:  # no linker, a linker that crashes, or no disk space
        return {"status": UNKNOWN, "error": str(error)[-300:]}
    return {"status": OK, "trace": trace, "digest": _digest(function)}


@functools.lru_cache(maxsize=8)
def _function(file: str) -> Any:
    """Load a workload's function. It is cached, since loading takes a tenth of the time of compiling a candidate."""
    import tvm

    return tvm.ir.load_json(Path(file).read_text(encoding="utf-8"))


def _estimate(file: Path, request: dict[str, Any], built: Any, backend: Backend) -> float | None:
    """Return the estimated seconds of a compiled kernel. file: its function before scheduling."""
    import tvm

    from tvmflow.targets.core_timing import core_of
    from tvmflow.tuning.cost_model.static_model import estimate_s

    function, assembly = tvm.ir.load_json(file.read_text(encoding="utf-8")), str(built.mod.inspect_source("asm"))
    core, threads = core_of(backend.target), backend.target.threads
    return estimate_s(function, request["template"], request["knobs"], assembly, core, threads)


def _schedule_kernel(function: PrimFunc, request: dict[str, Any], backend: Backend) -> tuple[Any, Any]:
    """Return the scheduled kernel and its trace, None for the reference kernel."""
    from tvmflow.passes.kernel.apply_schedules import replay
    from tvmflow.schedules.registry import apply_template, get_template
    from tvmflow.tuning.measure.reference_kernel import schedule_reference
    from tvmflow.tuning.records.traces import trace_json

    if request.get("trace") is not None:
        return replay(function, request["trace"]).mod["main"], request["trace"]
    if not request.get("template"):
        return schedule_reference(function), None
    template = get_template(request["template"], backend.templates())
    if template is None:
        raise ValueError(f"no template {request['template']!r}")
    schedule = apply_template(function, template, request["knobs"])
    return schedule.mod["main"], trace_json(schedule)


def _digest(function: PrimFunc) -> str:
    return hashlib.sha256(function.script(show_meta=False).encode()).hexdigest()


def _cpu_s() -> float:
    """Return the CPU seconds of this process and its children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of TVM and the linker must not mix with the replies

    def send(found: dict[str, Any]) -> None:
        out.write(json.dumps({**found, "cpu_s": _cpu_s()}) + "\n")
        out.flush()

    prepare_import_of_tvm()
    try:
        import tvm  # noqa: F401

    except Exception as error:  # a broken installation, or no memory
        send({"error": f"{type(error).__name__}: {str(error)[-300:]}"})
        return
    send({})
    for line in sys.stdin:
        send(build_kernel(json.loads(line)))


if __name__ == "__main__":
    main()

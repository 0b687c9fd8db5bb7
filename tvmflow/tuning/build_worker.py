"""Compile schedules for the tuner, one after the other, in a process that stays alive.

A line of JSON on standard input for each kernel, a line on standard output for each answer. PyTorch is kept out of the
process, since TVM would import it and take four times as long to start.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.modules["torch"] = None  # type: ignore[assignment]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Build one kernel: under a template's knobs, under a trace, or plainly. Returns status, trace, digest, error."""
    import tvm
    from tvm import s_tir

    from tvmflow.building.library import compile_module, export
    from tvmflow.passes.schedule_kernels import replay
    from tvmflow.targets.resolve import from_json
    from tvmflow.tuning.plain import plain
    from tvmflow.tuning.records import COMPILE_ERROR, ILLEGAL_SCHEDULE, OK
    from tvmflow.tuning.templates import scheduled, template_named
    from tvmflow.tuning.traces import trace_json

    function = tvm.ir.load_json(Path(request["function"]).read_text(encoding="utf-8"))
    trace = None
    try:
        if request.get("trace") is not None:
            function, trace = replay(function, request["trace"]).mod["main"], request["trace"]
        elif request.get("template"):
            template = template_named(request["template"])
            if template is None:
                return {"status": ILLEGAL_SCHEDULE, "error": f"no template {request['template']!r}"}
            schedule = scheduled(function, template, request["knobs"])
            function, trace = schedule.mod["main"], trace_json(schedule)
        else:
            function = plain(function)
    except (s_tir.ScheduleError, RuntimeError, ValueError, TypeError, IndexError) as error:
        return {"status": ILLEGAL_SCHEDULE, "error": str(error)[-300:]}
    try:
        target = from_json(request["target"])
        module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        built = compile_module(module, target.tvm_target())
        export(built, Path(request["path"]), target)
    except Exception as error:  # whatever the compiler raises: this schedule cannot be built, and that is the result
        return {"status": COMPILE_ERROR, "error": str(error)[-300:]}
    return {"status": OK, "trace": trace, "digest": _digest(function)}


def _digest(function: Any) -> str:
    return hashlib.sha256(function.script(show_meta=False).encode()).hexdigest()


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever TVM or a linker prints must not end up among the answers
    for line in sys.stdin:
        out.write(json.dumps(answer(json.loads(line))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()

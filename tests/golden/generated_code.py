"""Digest the code that every template generates: `python -m tests.golden.generated_code` renews the file.

Of each kernel some candidates are scheduled, and the schedule goes through all of TVM's passes, up to the door of LLVM:
what our templates, our passes and our intrinsics make of a kernel is in that text, and nothing of the machine that runs
the test. Records of measurements are believed as long as this does not change, or `codegen` in
tvmflow/toolchain/versions.py does.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tvm

from tests.golden.networks import TARGETS, Case, cases
from tvmflow.backends.cpu import CpuBackend
from tvmflow.passes.pipeline import kernel_pipeline, prepare_kernels
from tvmflow.schedules.registry import Knobs, apply_template, get_template
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.toolchain.versions import version

PATH = Path(__file__).with_name("generated_code.json")
RENEW = "python -m tests.golden.generated_code"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_of(function: Any, target: ResolvedTarget) -> str:
    """Return what LLVM is given of a scheduled kernel, as text."""
    tvm_target = target.tvm_target()
    with tvm_target:
        module = prepare_kernels(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), tvm_target)
        lower, of_host, _ = kernel_pipeline()
        module = of_host()(lower(tvm.tirx.transform.BindTarget(tvm_target)(module)))
    return str(module.script(show_meta=True))


def _one(case: Case, template: str, knobs: Knobs, to_the_end: bool) -> dict[str, Any]:
    """Return the digests of a kernel under its knobs: of its schedule, and of what LLVM is given where that is
    wanted.
    """
    row = get_template(template, CpuBackend(case.target).templates())
    assert row is not None, template
    function = apply_template(case.workload.function, row, knobs).mod["main"]
    code = _digest(code_of(function, case.target)) if to_the_end else ""
    return {"template": template, "knobs": knobs, "schedule": _digest(function.script(show_meta=True)), "code": code}


def fresh(case: Case) -> list[dict[str, Any]]:
    """Return the digests of the likeliest candidate of each family of knobs, and of the schedule of the last of all."""
    match = CpuBackend(case.target).template_for(case.workload.function)
    assert match is not None, case.name
    template, candidates = match
    families: dict[tuple[str, ...], Knobs] = {}
    for knobs in candidates:
        families.setdefault(tuple(sorted(knobs)), knobs)
    last = [] if candidates[-1] in families.values() else [_one(case, template.name, candidates[-1], False)]
    return [_one(case, template.name, knobs, True) for knobs in families.values()] + last


def changes(known: dict[str, Any], cases: Iterable[Case]) -> Iterator[str]:
    """Yield the kernels whose code is no longer what the file says, under the knobs that it says."""
    for case in cases:
        for entry in known["kernels"].get(case.name, []):
            try:
                now = _one(case, entry["template"], entry["knobs"], bool(entry["code"]))
            except Exception as error:  # knobs or templates of that name are gone: records of them are lost
                now = {"schedule": type(error).__name__, "code": entry["code"]}
            kinds = [kind for kind in ("schedule", "code") if now[kind] != entry[kind]]
            if kinds:
                yield f"{case.name} {entry['knobs']}: another {' and another '.join(kinds)}"


def load() -> dict[str, Any]:
    """Return the file: the versions of TVM and of our code generation, and the digests by kernel."""
    known: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return known


def renew() -> str:
    """Write the file anew; returns what is wrong instead where code changed under the same version of ours."""
    known = load() if PATH.exists() else {"codegen": "", "tvm": "", "kernels": {}}
    same = (known["codegen"], known["tvm"]) == (version("codegen"), version("tvm"))
    current = [case for target in TARGETS.values() for case in cases(target)]
    changed = list(changes(known, current)) if same else []
    if changed:
        return "\n".join(
            [*changed, f"raise _CODEGEN in tvmflow/toolchain/versions.py above {known['codegen']}, then: {RENEW}"]
        )
    digests = {case.name: fresh(case) for case in current}
    made = {"codegen": version("codegen"), "tvm": version("tvm"), "kernels": digests}
    PATH.write_text(json.dumps(made, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    return ""


if __name__ == "__main__":
    sys.exit(renew())

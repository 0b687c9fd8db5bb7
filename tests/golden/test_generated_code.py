"""Check that generated code does not change without a new codegen version, which would mix up old measurements."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.golden.generated_code import RENEW, changes, load
from tests.golden.networks import TARGETS, Case, cases
from tvmflow.ir.tir.blocks import Kernel
from tvmflow.schedules import registry as templates
from tvmflow.schedules.registry import Knobs
from tvmflow.toolchain.versions import version

GOLDEN = load()
ANOTHER_TVM = pytest.mark.skipif(
    version("tvm") != GOLDEN["tvm"], reason="the digests are of the pinned TVM: another one generates other code"
)


@ANOTHER_TVM
@pytest.mark.parametrize("name", TARGETS)
def test_code_changes_only_with_the_codegen_version(name: str) -> None:
    assert GOLDEN["codegen"] == version("codegen"), f"codegen is {version('codegen')} now: {RENEW}"
    current = list(cases(TARGETS[name]))
    changed = list(changes(GOLDEN, current))
    assert not changed, "\n".join([*changed, f"raise _CODEGEN in tvmflow/toolchain/versions.py, then: {RENEW}"])
    known = {kernel for kernel in GOLDEN["kernels"] if kernel.split()[0] == name}
    assert {case.name for case in current} == known, f"kernels came or went, no version need be raised: {RENEW}"


def test_the_digests_are_of_the_pinned_tvm_and_of_every_template() -> None:
    pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    assert re.search(r"^apache-tvm==(\S+)", pins, re.M)[1] == GOLDEN["tvm"], RENEW  # type: ignore[index]
    entries = [entry for kernel in GOLDEN["kernels"].values() for entry in kernel]
    assert {entry["template"] for entry in entries} == {template.name for template in templates.TEMPLATES}
    assert any(entry["knobs"].get("tiles") for entry in entries)
    assert {entry["knobs"].get("dot") for entry in entries} >= {1, 2, 3, 4, 5}


@functools.cache
def _of(target: str) -> list[Case]:
    return list(cases(TARGETS[target]))


def _annotated(apply: Callable[[Any, Kernel, Knobs], None]) -> Callable[[Any, Kernel, Knobs], None]:
    def changed(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
        apply(schedule, kernel, knobs)
        schedule.annotate(schedule.get_sblock("root", "main"), "another", 1)

    return changed


@ANOTHER_TVM
@pytest.mark.parametrize("index", range(len(templates.TEMPLATES)), ids=lambda at: templates.TEMPLATES[at].name)
def test_another_schedule_of_any_template_is_seen(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = templates.TEMPLATES[index]
    mine = {name: kernel for name, kernel in GOLDEN["kernels"].items() if kernel[0]["template"] == known.name}
    target = min((name.split()[0] for name in mine), key=lambda name: name != "znver4")  # the first that has it
    chosen = [case for case in _of(target) if case.name in mine][:2]
    other = replace(known, apply=_annotated(known.apply))
    table = (*templates.TEMPLATES[:index], other, *templates.TEMPLATES[index + 1 :])
    monkeypatch.setattr(templates, "TEMPLATES", table)
    lines = list(changes({"kernels": mine}, chosen))
    assert chosen and all(any(line.startswith(case.name) for line in lines) for case in chosen)


@ANOTHER_TVM
def test_knobs_that_no_template_takes_any_more_are_seen() -> None:
    name, entries = next((n, e) for n, e in GOLDEN["kernels"].items() if n.startswith("znver4"))
    renamed = {name: [{**entries[0], "knobs": {f"{knob}_2": value for knob, value in entries[0]["knobs"].items()}}]}
    assert len(list(changes({"kernels": renamed}, _of("znver4")))) == 1

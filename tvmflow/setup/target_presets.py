"""Know targets for usual devices, and what each needs on this machine to be compiled for and measured.

Their text is `target_presets.yaml`, as it may stand in params.yaml: a comment after a name says what it is for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmflow.config.params import LOCAL_CPU, TargetEntry
from tvmflow.config.yaml_reader import load_yaml
from tvmflow.setup.yaml_editor import add_entry
from tvmflow.support.errors import TvmflowError, UnknownNameError
from tvmflow.support.extras import missing_extra

_NAME = re.compile(r"^  ([\w.-]+):[ ]*(?:#[ ]*(.*))?$", re.MULTILINE)


@dataclass(frozen=True)
class Preset:
    """A target by name. note: what it is for; entry: as in params.yaml."""

    name: str
    note: str
    entry: dict[str, Any]

    @property
    def target(self) -> TargetEntry:
        return TargetEntry.model_validate(self.entry)


@dataclass(frozen=True)
class Needs:
    """What a target needs. compiler, device: what is there, or what is missing; can_build, can_measure: with what is
    there; hints: what to do for the rest.
    """

    compiler: str
    device: str
    can_build: bool
    can_measure: bool
    hints: tuple[str, ...] = ()


@functools.cache
def presets() -> Mapping[str, Preset]:
    """Return name -> preset."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    entries: dict[str, Any] = load_yaml(text)["targets"]
    notes = dict(_NAME.findall(text))
    return {name: Preset(name, notes[name], entry) for name, entry in entries.items()}


def add_target(text: str, name: str) -> str:
    """Return params.yaml with a preset under targets:. Raises UnknownNameError."""
    if name == LOCAL_CPU:  # each file has it
        return text
    if name not in presets():
        raise UnknownNameError(
            f"unknown target {name!r}", legal=presets(), name=name, hint="'tvmflow targets' says what each is for"
        )
    return add_entry(text, "targets", name, presets()[name].entry)


def needs_of(target: TargetEntry) -> Needs:
    """Look for the compiler and the device of a target. Starts programs that say their version; waits for nobody."""
    hints = []
    try:
        compiler, can_build = _compiler(target), True
    except (TvmflowError, ModuleNotFoundError) as error:
        known = missing_extra(error) if isinstance(error, ModuleNotFoundError) else error
        if known is None:
            raise
        compiler, can_build = known.found.partition(", which")[0], False
        hints.append(known.hint)
    try:
        from tvmflow.devices.registry import transport_of

        state = transport_of(target.device).state(target.device)
        device, can_measure = state.text, state.is_there
        hints.append("" if state.is_there else state.hint)
    except TvmflowError as error:
        device, can_measure = error.found, False
        hints.append(error.hint)
    return Needs(compiler, device, can_build, can_build and can_measure, tuple(filter(None, hints)))


def _compiler(target: TargetEntry) -> str:
    from tvmflow.backends.registry import backend_for
    from tvmflow.toolchain.compilers import compiler_named

    resolved = backend_for(target).target
    compiler_named(resolved.cc).command(resolved.mtriple)
    return resolved.cc

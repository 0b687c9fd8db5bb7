"""Describe the GPUs of a device as the probe program reports them."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tvmflow.devices.known_bad_gpus import KnownBad, known_bad
from tvmflow.targets.gpu_features import gpu_kind_of

NEEDED = {"opencl": ("buffer",), "vulkan": ("buffer",)}
OK = "ok"
_MOST_BYTES = 1 << 20
_MOST_DEVICES = 32


@dataclass(frozen=True)
class Gpu:
    """One device of one API. facts: as its driver reports them; tests: self-test -> `ok`, or the failure."""

    api: str
    library: str
    facts: Mapping[str, Any]
    tests: Mapping[str, str]
    known: tuple[KnownBad, ...] = ()

    @property
    def name(self) -> str:
        return str(self.facts.get("name", "")).strip() or "a GPU without a name"

    @property
    def kind(self) -> str | None:
        """Return what `kind:` of a target's block is for this GPU, None where no kind has features of its own."""
        return gpu_kind_of(self.name, str(self.facts.get("version", "")))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return the reasons why it cannot be used; empty if it can."""
        failed = [
            f"{name}: {self.tests.get(name, 'not tested')}" for name in NEEDED[self.api] if self.tests.get(name) != OK
        ]
        return (*failed, *(f"{one.reason} ({one.reported})" for one in self.known if one.use == "any"))

    @property
    def can(self) -> tuple[str, ...]:
        """Return the self-tests that it passed, without those that a known bad driver excludes."""
        bad = {one.use for one in self.known}
        return tuple(name for name, result in self.tests.items() if result == OK and name not in bad)

    def to_json(self) -> dict[str, Any]:
        return {
            "api": self.api,
            "library": self.library,
            **self.facts,
            "name": self.name,
            "kind": self.kind,
            "tests": dict(self.tests),
            "usable": not self.reasons,
            "reasons": list(self.reasons),
            "known": [one.reason for one in self.known],
        }


@dataclass
class Probed:
    """The result of the probe. missing: API -> reason; ended: how a driver ended the probe, "" if it finished."""

    gpus: list[Gpu] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    ended: str = ""


def describe_signal(number: int) -> str:
    """Return a message for a signal that ended the probe."""
    try:
        return f"the driver ended it by {signal.Signals(number).name}"
    except ValueError:
        return f"the driver ended it by signal {number}"


def read_probe(text: str, ended: str = "") -> Probed:
    """Return the result in the output of a probe; other lines are ignored. ended: how it ended, "" if it finished."""
    lines: list[object] = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            lines.append(json.loads(line))
    return parse_probe(lines, ended)


def parse_probe(lines: Iterable[object], ended: str = "") -> Probed:
    """Return the result in the lines of a probe, parsed as JSON."""
    probed = Probed(ended=ended)
    libraries: dict[str, str] = {}
    facts: dict[tuple[str, int], dict[str, Any]] = {}
    tests: dict[tuple[str, int], dict[str, str]] = {}
    for said in lines:
        if not isinstance(said, dict):
            continue
        api, device = said.get("api"), said.get("device")
        if not isinstance(api, str) or api not in NEEDED:
            continue
        if not isinstance(device, int):
            if isinstance(said.get("library"), str):
                libraries[api] = said["library"]
            elif isinstance(said.get("error"), str):
                probed.missing[api] = said["error"]
            continue
        if not isinstance(said.get("test"), str):
            if (api, device) in facts or len(facts) < _MOST_DEVICES:
                more = {name: value for name, value in said.items() if name not in ("api", "device")}
                facts[api, device] = {**facts.get((api, device), {}), **more}
            continue
        result = said.get("result", ended or "it did not end")
        tests.setdefault((api, device), {})[said["test"]] = str(result)
    for (api, device), known in facts.items():
        probed.gpus.append(Gpu(api, libraries.get(api, ""), known, tests.get((api, device), {}), known_bad(api, known)))
    return probed


_LONGEST_NAME = 200


def sanitize_name(said: object) -> str:
    """Return a device's name for records and filters: one line of letters, digits and few other characters."""
    return re.sub(r"[^A-Za-z0-9 .,:;/+@#()~_-]", "?", str(said))[:_LONGEST_NAME]


@dataclass(frozen=True)
class GpuFacts:
    """The GPU that computes the networks of a session, as its driver reports it. api: opencl or vulkan; version: of the
    driver.
    """

    api: str
    device: str
    driver: str
    version: str

    def __str__(self) -> str:
        return f"{self.device} ({self.driver} {self.version}, {self.api})"

"""Which GPUs a system can compute on: runtime/gpu as a program, whose self-tests run in a process of their own.

Drivers crash, hang and claim what they cannot do: a GPU is usable when its self-tests passed, not when it is listed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from tvmflow.devices.agent.process import probe_sources, run_compiler
from tvmflow.devices.known_bad_gpus import KnownBad, known_bad
from tvmflow.support.errors import DeviceError
from tvmflow.support.files import digest_of, sha256_of
from tvmflow.support.paths import RUNTIME
from tvmflow.toolchain.environments import cache_folder

TIME_LIMIT_S = 60.0
NEEDED = {"opencl": ("buffer",), "vulkan": ("buffer",)}
"""API -> self-tests without which a GPU is of no use."""
OK = "ok"
_MOST_BYTES = 1 << 20
_MOST_DEVICES = 32
_COMPILE = ("-std=c11", "-O2", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-s")


@dataclass(frozen=True)
class Gpu:
    """One device of one API. facts: as the driver tells them; tests: self-test -> `ok`, or why it failed."""

    api: str
    library: str
    facts: Mapping[str, Any]
    tests: Mapping[str, str]
    known: tuple[KnownBad, ...] = ()

    @property
    def name(self) -> str:
        return str(self.facts.get("name", "")).strip() or "a GPU without a name"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return why it cannot be used; nothing where it can."""
        failed = [
            f"{name}: {self.tests.get(name, 'not tested')}" for name in NEEDED[self.api] if self.tests.get(name) != OK
        ]
        return (*failed, *(f"{one.reason} ({one.reported})" for one in self.known if one.use == "any"))

    @property
    def can(self) -> tuple[str, ...]:
        """Return the self-tests that it passed and that no known fault takes back."""
        bad = {one.use for one in self.known}
        return tuple(name for name, result in self.tests.items() if result == OK and name not in bad)

    def to_json(self) -> dict[str, Any]:
        return {
            "api": self.api, "library": self.library, **self.facts, "name": self.name, "tests": dict(self.tests), "usable": not self.reasons,
            "reasons": list(self.reasons), "known": [one.reason for one in self.known],
        }  # fmt: skip


@dataclass
class Probed:
    """What the probe said. missing: API -> why it is not there; ended: how a driver ended the probe, "" where it came to its end."""

    gpus: list[Gpu] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    ended: str = ""


def probe_program(compiler: Sequence[str] = ("gcc",)) -> Path:
    """Return the probe as a program, compiled now if it is not there. Raises ToolchainError."""
    sources = [RUNTIME / "gpu" / "main.c", *probe_sources()]
    digests = {file.name: sha256_of(file) for file in (RUNTIME / "gpu").iterdir() if file.is_file()}
    folder = cache_folder() / "gpu-probe" / digest_of([digests, list(compiler)])[:16]
    program = folder / "gpu-probe"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not program.exists():
            unfinished = folder / "unfinished"
            command = [*compiler, *_COMPILE, "-o", str(unfinished), *map(str, sources), "-ldl"]
            run_compiler(command, "the GPU probe", "install gcc")
            unfinished.replace(program)
    return program


def probe(
    program: Path, environment: Mapping[str, str] | None = None, options: Sequence[str] = (), limit_s: float = TIME_LIMIT_S
) -> Probed:  # fmt: skip
    """Run the probe; what a driver ends or holds up costs only what it had not said. Raises DeviceError where it does not start."""
    command = [str(program), *options]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **(environment or {})},
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise DeviceError(f"the GPU probe does not start: {error.strerror}", "a program of this machine") from None
    ended = ""
    try:
        output, _ = process.communicate(timeout=limit_s)
        if process.returncode:
            code = process.returncode
            ended = ended_by(-code) if code < 0 else f"it ended with exit code {code}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        ended = f"it did not end within {limit_s:g} s"
    return read_probe(output[:_MOST_BYTES].decode("ascii", errors="replace"), ended)


def ended_by(number: int) -> str:
    """Say that a signal ended the probe."""
    try:
        return f"the driver ended it by {signal.Signals(number).name}"
    except ValueError:
        return f"the driver ended it by signal {number}"


def read_probe(text: str, ended: str = "") -> Probed:
    """Return what the lines of a probe say; lines that are none of its are left out. ended: how it ended, "" for well."""
    lines: list[object] = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            lines.append(json.loads(line))
    return probed_of(lines, ended)


def probed_of(lines: Iterable[object], ended: str = "") -> Probed:
    """Return what the lines of a probe say, read as JSON."""
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

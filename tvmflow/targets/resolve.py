"""Resolve a target of params.yaml to concrete values for the compiler.

Its backend resolves it; nothing is left to be guessed later.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tvmflow.config.params import TargetEntry
from tvmflow.support.errors import UsageError
from tvmflow.targets.probed_processors import DEVICE, read_record
from tvmflow.toolchain.compilers import Command, compiler_named
from tvmflow.toolchain.triples import ARM32, WASM, triple_of
from tvmflow.toolchain.versions import probe

# The fields of a target's entry that affect the code: all but the connection to its device.
TARGET_READS = tuple(f"targets.{{target}}.{name}" for name in TargetEntry.model_fields if name != "device")


@dataclass(frozen=True)
class Processor:
    """LLVM's name of a processor, the target triple, and features that differ from the name's."""

    mcpu: str
    mtriple: str
    mattr: tuple[str, ...]


def processor_of(entry: TargetEntry) -> Processor:
    """Return the processor of a target without 'host', 'device' or defaults. Raises UsageError if a device was never
    probed.
    """
    mcpu, attributes = entry.mcpu, tuple[str, ...]()
    if mcpu == "host":
        mcpu, attributes = host_processor()
    elif mcpu == DEVICE:
        mcpu, attributes = read_record(entry) or _fail_unprobed(entry)
    return Processor(mcpu, entry.mtriple or f"{platform.machine()}-linux-gnu", (*attributes, *entry.mattr))


def _fail_unprobed(entry: TargetEntry) -> NoReturn:
    raise UsageError(
        f"mcpu: device, and the device {entry.device.key!r} was never probed",
        "a probe of the device: its result is stored",
        "'tvmflow run CELL' and 'tvmflow device check TARGET' ask it; or name its processor with mcpu:",
    )


@dataclass(frozen=True)
class ResolvedTarget:
    """A target without 'host' or defaults. kind: its backend; options: of that backend, as JSON."""

    kind: str
    mcpu: str
    mtriple: str
    mattr: tuple[str, ...]
    threads: int
    cc: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def cpu_kind(self) -> str:
        """Return the kind of CPU that tuning records of CPU kernels are valid for."""
        return f"cpu-{self.mcpu}{''.join(self.mattr)}-t{self.threads}"

    @property
    def runs_here(self) -> bool:
        """Whether this machine can execute the library, by architecture; Android's needs another C library, Apple's
        another system.
        """
        triple = triple_of(self.mtriple)
        return triple.architecture == platform.machine() and triple.system != "android" and not triple.is_apple

    @property
    def compiler(self) -> Command:
        """Return the command of the target's compiler, which also links. Raises ToolchainError."""
        return compiler_named(self.cc).command(self.mtriple)

    def tvm_target(self) -> Any:
        """Return the tvm.target.Target of its CPU, which runs the network's main function; its host is itself."""
        import tvm

        options: dict[str, Any] = {
            "kind": "llvm",
            "mcpu": self.mcpu,
            "mtriple": self.mtriple,
            "num-cores": self.threads,
        }
        if self.mattr:
            options["mattr"] = list(self.mattr)
        triple = triple_of(self.mtriple)
        if triple.architecture == ARM32:  # calling convention of floats
            options["mfloat-abi"] = "soft" if triple.system == "android" else "hard"
        if triple.architecture == WASM:
            options["vector-width"] = 128  # TVM prints a warning for each kernel without
        return tvm.target.Target(options, host=dict(options))


def host_target() -> ResolvedTarget:
    """Return this machine as a target with two threads, for checks between stages only."""
    mcpu, attributes = host_processor()
    return ResolvedTarget("llvm", mcpu, f"{platform.machine()}-linux-gnu", attributes, 2, "g++")


def host_processor() -> tuple[str, tuple[str, ...]]:
    """Return LLVM's name of this machine's processor, and attributes that differ from it."""
    found = probe()
    return found["host_cpu"], tuple(found["host_attributes"].split(",")) if found["host_attributes"] else ()

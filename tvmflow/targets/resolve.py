"""Turn a target row of params.yaml into what the compiler gets: nothing in it is left to be guessed later."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

from tvmflow.params import TargetEntry, VtaEntry
from tvmflow.toolchain import probe
from tvmflow.vta.config import VtaConfig


@dataclass(frozen=True)
class VtaTarget:
    """The accelerator of a target: its design, how to schedule for it, and between which layers (or auto)."""

    config: VtaConfig
    mode: str
    start: str
    stop: str

    def to_json(self) -> dict[str, Any]:
        return {"config": self.config.to_json(), "mode": self.mode, "start": self.start, "stop": self.stop}

    @staticmethod
    def from_json(data: dict[str, Any]) -> VtaTarget:
        return VtaTarget(**{**data, "config": VtaConfig.from_json(data["config"])})


@dataclass(frozen=True)
class ResolvedTarget:
    """A target without 'host' or defaults."""

    kind: str
    mcpu: str
    mtriple: str
    mattr: tuple[str, ...]
    threads: int
    cc: str
    vta: VtaTarget | None = None

    @property
    def cpu_kind(self) -> str:
        """Return the kind of CPU that tuning records of CPU kernels are valid for."""
        return f"cpu-{self.mcpu}{''.join(self.mattr)}-t{self.threads}"

    @property
    def device_kind(self) -> str:
        """Return the kind of device that numbers are measured on: the accelerator where there is one."""
        return f"vta-{self.vta.config.name}" if self.vta is not None else self.cpu_kind

    @property
    def runs_here(self) -> bool:
        """Whether this machine can execute the library, as far as the architecture goes."""
        return self.mtriple.split("-")[0] == platform.machine()

    def to_json(self) -> dict[str, Any]:
        vta = self.vta.to_json() if self.vta is not None else None
        return {**asdict(self), "mattr": list(self.mattr), "vta": vta}

    def tvm_target(self) -> Any:
        """Return the tvm.target.Target, its host being itself."""
        import tvm

        options: dict[str, Any] = {
            "kind": self.kind, "mcpu": self.mcpu, "mtriple": self.mtriple, "num-cores": self.threads,
        }  # fmt: skip
        if self.mattr:
            options["mattr"] = list(self.mattr)
        return tvm.target.Target(options, host=dict(options))


def resolve(entry: TargetEntry) -> ResolvedTarget:
    """Resolve `mcpu: host` and a missing triple for this machine."""
    mcpu, attributes = _host() if entry.mcpu == "host" else (entry.mcpu, ())
    return ResolvedTarget(
        kind=entry.kind,
        mcpu=mcpu,
        mtriple=entry.mtriple or f"{platform.machine()}-linux-gnu",
        mattr=(*attributes, *entry.mattr),
        threads=entry.threads,
        cc=entry.cc or "g++",
        vta=_vta(entry.vta),
    )


def _vta(entry: VtaEntry | None) -> VtaTarget | None:
    return None if entry is None else VtaTarget(entry.resolved(), entry.mode, entry.start, entry.stop)


def from_json(data: dict[str, Any]) -> ResolvedTarget:
    vta = VtaTarget.from_json(data["vta"]) if data["vta"] is not None else None
    return ResolvedTarget(**{**data, "mattr": tuple(data["mattr"]), "vta": vta})


def host_target() -> ResolvedTarget:
    """Return this machine as a target, two threads: for checks between stages, never for what is shipped."""
    mcpu, attributes = _host()
    return ResolvedTarget("llvm", mcpu, f"{platform.machine()}-linux-gnu", attributes, 2, "g++")


def _host() -> tuple[str, tuple[str, ...]]:
    """Return LLVM's name of this machine's processor, and where the processor differs from it."""
    found = probe()
    return found["host_cpu"], tuple(found["host_attributes"].split(",")) if found["host_attributes"] else ()

"""Turn a target row of params.yaml into what the compiler gets: nothing in it is left to be guessed later."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

from tvmflow.params import TargetEntry
from tvmflow.toolchain import probe


@dataclass(frozen=True)
class ResolvedTarget:
    """A target without 'host' or defaults. `device_kind` names the silicon that tuning records are valid for."""

    kind: str
    mcpu: str
    mtriple: str
    mattr: tuple[str, ...]
    threads: int
    cc: str

    @property
    def device_kind(self) -> str:
        return f"cpu-{self.mcpu}-t{self.threads}"

    @property
    def runs_here(self) -> bool:
        """Whether this machine can execute the library, as far as the architecture goes."""
        return self.mtriple.split("-")[0] == platform.machine()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "mattr": list(self.mattr)}

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
    return ResolvedTarget(
        kind=entry.kind,
        mcpu=probe()["host_cpu"] if entry.mcpu == "host" else entry.mcpu,
        mtriple=entry.mtriple or f"{platform.machine()}-linux-gnu",
        mattr=entry.mattr,
        threads=entry.threads,
        cc=entry.cc or "g++",
    )


def from_json(data: dict[str, Any]) -> ResolvedTarget:
    return ResolvedTarget(**{**data, "mattr": tuple(data["mattr"])})


def host_target() -> ResolvedTarget:
    """Return this machine as a target, two threads: for checks between stages, never for what is shipped."""
    return ResolvedTarget("llvm", probe()["host_cpu"], f"{platform.machine()}-linux-gnu", (), 2, "g++")

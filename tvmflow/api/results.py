"""Define the return values of the API: frozen values, each with `to_json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from tvmflow.support.errors import TvmflowError

StageState = Literal["hit", "restore", "miss", "waits", "refused"]


@dataclass(frozen=True)
class StagePlan:
    """The plan of a stage. key: the first digits of its recipe key, '' if it is not known yet."""

    stage: str
    state: StageState
    why: str
    key: str

    def to_json(self) -> dict[str, str]:
        return {"stage": self.stage, "state": self.state, "why": self.why, "key": self.key}


@dataclass(frozen=True)
class CellPlan:
    """The plan of a cell. error: why it cannot be run; `stages` then has one row with that error."""

    cell: str
    stages: tuple[StagePlan, ...]
    error: TvmflowError | None = None

    @property
    def todo(self) -> tuple[str, ...]:
        """Return the stages that are not done."""
        return () if self.error else tuple(stage.stage for stage in self.stages if stage.state != "hit")

    def to_json(self) -> list[dict[str, str]]:
        return [stage.to_json() for stage in self.stages]


@dataclass(frozen=True)
class CellStatus:
    """The progress of a listed cell. name: under `cells:`; error: why it cannot be run; warnings: badges of its
    scorecard.
    """

    name: str
    cell: str
    todo: tuple[str, ...]
    measured: bool
    error: str | None
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "cell": self.cell,
            "todo": list(self.todo),
            "measured": self.measured,
            "error": self.error,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class Status:
    models: tuple[str, ...]
    targets: tuple[str, ...]
    cells: tuple[CellStatus, ...]

    def to_json(self) -> dict[str, Any]:
        return {"models": list(self.models), "targets": list(self.targets), "cells": [c.to_json() for c in self.cells]}


@dataclass(frozen=True)
class DeviceState:
    """The device of a target. state: what its tracker says in words; counts: in numbers, where it has any."""

    target: str
    kind: str
    key: str
    transport: str
    state: str
    counts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        own = {"target": self.target, "kind": self.kind, "key": self.key, "transport": self.transport}
        return {**own, **self.counts, "state": self.state}


@dataclass(frozen=True)
class GpuState:
    """A GPU of this machine. can: the self-tests that it passed; state: usable, or why not; facts: all that is known,
    as JSON.
    """

    api: str
    name: str
    driver: str
    version: str
    can: tuple[str, ...]
    state: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**self.facts, "state": self.state}


@dataclass(frozen=True)
class KernelState:
    """A kernel of a network on a device. error: relative to its largest output on this machine's CPU; varies: its
    outputs differ between inputs.
    """

    kernel: str
    error: float
    varies: bool
    agrees: bool

    def to_json(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "error": self.error, "varies": self.varies, "agrees": self.agrees}


@dataclass(frozen=True)
class QuarantineState:
    """A GPU, with its driver, that no release relies on: `kernel` of `cell` computed other values than the CPU. facts:
    all that is known, as JSON.
    """

    gpu: str
    cell: str
    kernel: str
    reason: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**self.facts, "state": "quarantine"}


@dataclass(frozen=True)
class PhoneState:
    """A phone at this machine. state: authorized, or why it cannot be used; cores: values for mcpu; battery: percent.
    "" and None: unknown.
    """

    serial: str
    state: str
    model: str = ""
    android: str = ""
    soc: str = ""
    abi: str = ""
    features: str = ""
    cores: str = ""
    battery: int | None = None
    celsius: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ReadyPhone:
    """A phone with a listening agent. port: of this machine; secret_file: for the device's entry; build: of Android.

    is_for_tracker: the target's device uses a tracker, with which the phone is to be registered by offer_device.
    """

    serial: str
    model: str
    port: int
    secret_file: Path
    build: str = ""
    is_for_tracker: bool = False


@dataclass(frozen=True)
class Latency:
    """Times of one run in milliseconds; low_ms to high_ms: the interval of the median (None: too few turns).

    badges: descriptions of disturbances. round_trip_ns: of a cache line between the computing cores, if known:
    measurements are comparable if it is similar.
    """

    median_ms: float
    mean_ms: float
    p90_ms: float
    min_ms: float
    max_ms: float
    std_ms: float
    runs: int
    low_ms: float | None = None
    high_ms: float | None = None
    badges: tuple[str, ...] = ()
    round_trip_ns: float | None = None

    @staticmethod
    def of(entry: Mapping[str, Any]) -> Latency:
        """Return the latency of a scorecard's entry."""
        numbers = {f"{k}_ms": float(entry[f"{k}_ms"]) for k in ("median", "mean", "p90", "min", "max", "std")}
        return Latency(
            **numbers,
            runs=int(entry["runs"]),
            low_ms=entry["low_ms"],
            high_ms=entry["high_ms"],
            badges=tuple(entry["badges"]),
            round_trip_ns=entry["round_trip_ns"],
        )


@dataclass(frozen=True)
class Scorecard:
    """The measurements of a cell's newest library.

    accuracy: after each stage (source, imported, quantized, built), 0 to 1; None without a data set. latency: of the
    library on its device; peers: of baselines on the same machine. max_relative_error: of the outputs on the device
    against the source framework's, relative to their spread. raw: all of scorecard.json.
    """

    cell: str
    device: str
    batch: int
    accuracy: Mapping[str, float] | None
    max_relative_error: float
    latency: Latency
    peers: Mapping[str, Latency]
    cold_start_ms: float
    library_bytes: int
    coverage: float
    raw: Mapping[str, Any] = field(repr=False)

    @staticmethod
    def of(card: Mapping[str, Any]) -> Scorecard:
        """Return a scorecard as scorecard.json holds it."""
        accuracy = card["accuracy"]
        cold = sorted(card["cold_start_ms"])
        return Scorecard(
            cell=card["cell"],
            device=card["device"]["kind"],
            batch=card["batch"],
            accuracy={k: float(v) for k, v in accuracy.items() if k != "samples"} if accuracy else None,
            max_relative_error=float(card["agreement"]["max_relative_error"]),
            latency=Latency.of(card["latency"]["compute"]),
            peers={name: Latency.of(peer) for name, peer in card["peers"].items()},
            cold_start_ms=cold[len(cold) // 2],
            library_bytes=card["library_bytes"],
            coverage=card["coverage"],
            raw=card,
        )

    def to_json(self) -> dict[str, Any]:
        return dict(self.raw)


@dataclass(frozen=True)
class RunResult:
    """The result of a run for one cell. outcomes: stage -> hit, restored or made; failed_stage: the origin of
    `error`.
    """

    cell: str
    outcomes: Mapping[str, str]
    error: TvmflowError | None = None
    failed_stage: str | None = None
    scorecard: Scorecard | None = field(default=None, repr=False)

    @staticmethod
    def of(result: Mapping[str, Any], card: Mapping[str, Any] | None) -> RunResult:
        """Return what a flow returned, with the scorecard that the cell has now."""
        from tvmflow.support.errors import from_json

        error = result["error"]
        return RunResult(
            result["cell"],
            result["outcomes"],
            from_json(error) if error else None,
            result.get("failed_stage"),
            Scorecard.of(card) if card else None,
        )

    def to_json(self) -> dict[str, Any]:
        error = self.error.to_json() if self.error else None
        return {"cell": self.cell, "outcomes": dict(self.outcomes), "error": error, "failed_stage": self.failed_stage}


@dataclass(frozen=True)
class RetuneResult:
    """The result of a re-tune for one cell. before, now: versions of the toolchain; kernels: numbers of replayed, lost,
    searched ones; outcomes: stage -> hit, restored or made; comparison: of the new library with the champion, None
    without one.
    """

    cell: str
    verdict: str
    promoted: bool
    outcomes: Mapping[str, str]
    before: Mapping[str, str] | None
    now: Mapping[str, str]
    kernels: Mapping[str, Any]
    comparison: Mapping[str, Any] | None
    error: TvmflowError | None
    raw: Mapping[str, Any] = field(repr=False)

    @staticmethod
    def of(result: Mapping[str, Any]) -> RetuneResult:
        """Return what the flow returned for a cell."""
        from tvmflow.support.errors import from_json

        error = result["error"]
        return RetuneResult(
            cell=result["cell"],
            verdict=result["verdict"],
            promoted=result["promoted"],
            outcomes=result["outcomes"],
            before=result.get("before"),
            now=result.get("now", {}),
            kernels=result.get("tuning", {}),
            comparison=result.get("comparison"),
            error=from_json(error) if error else None,
            raw=result,
        )

    def to_json(self) -> dict[str, Any]:
        return dict(self.raw)


@dataclass(frozen=True)
class Measurement:
    """A measurement in MLflow. when: UTC; unit: the device of its kind; build: of its system; latency_ms: None if the
    device's clock is not a time.

    badges: descriptions of disturbances. library: the first digits of its sha256; version: in the registry, '' for
    none; roles: champion, challenger, previous; run_id: of MLflow; url: its page in MLflow's UI.
    """

    cell: str
    when: str
    tvm: str
    device: str
    unit: str
    build: str
    accuracy: float | None
    latency_ms: float | None
    badges: str
    library: str
    version: str
    roles: tuple[str, ...]
    run_id: str
    url: str
    row: Mapping[str, Any] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return dict(self.row)


@dataclass(frozen=True)
class Verdict:
    """The verdict of the gate. promoted: the champion changed; reasons: against the release; comparison: with the
    champion.
    """

    passed: bool
    promoted: bool
    reasons: tuple[str, ...]
    text: str
    comparison: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "promoted": self.promoted,
            "reasons": list(self.reasons),
            "text": self.text,
            "comparison": dict(self.comparison) if self.comparison else None,
        }

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
    """What a run would do with a stage, and why. key: the first digits of its recipe key, '' where it is not decided
    yet.
    """

    stage: str
    state: StageState
    why: str
    key: str

    def to_json(self) -> dict[str, str]:
        return {"stage": self.stage, "state": self.state, "why": self.why, "key": self.key}


@dataclass(frozen=True)
class CellPlan:
    """What a run would do with a cell. error: why it cannot be run at all; `stages` then has one row that says so."""

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
    """How far a listed cell is. name: under `cells:`; error: why it cannot be run."""

    name: str
    cell: str
    todo: tuple[str, ...]
    measured: bool
    error: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "cell": self.cell,
            "todo": list(self.todo),
            "measured": self.measured,
            "error": self.error,
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
    """A phone at this machine. state: authorized, or what keeps it from being used; cores: what mcpu may be; battery:
    percent; "" and None: not told.
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
    """A phone on which the agent listens. port: of this machine; secret_file: what the device's entry needs; build: of
    Android.

    is_for_tracker: the target names a tracker, which is still to be told of the phone: offer_device.
    """

    serial: str
    model: str
    port: int
    secret_file: Path
    build: str = ""
    is_for_tracker: bool = False


@dataclass(frozen=True)
class Latency:
    """Times of one run in milliseconds, low_ms to high_ms the interval of the median (None: too few turns).

    badges: what disturbed the measurement, in words. round_trip_ns: of a line of the cache between the cores that
    computed, where it was seen: measurements of one machine are compared where it is about the same.
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
    """What was measured of a cell's newest library.

    accuracy: after each stage (source, imported, quantized, built), 0 to 1; None where there is no data set. latency:
    of the library on its device; peers: of other frameworks on the same machine. max_relative_error: of the outputs on
    the device against those of the source framework, relative to the largest. raw: all of scorecard.json.
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
    """What a run did with one cell. outcomes: stage -> hit, restored or made; failed_stage: where `error` came from."""

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
    """What a re-tune did with one cell. before, now: versions of the toolchain; kernels: how many were replayed, lost,
    searched...

    outcomes: stage -> hit, restored or made; comparison: of the new library with the champion, None where there was
    none.
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
    """A measurement that MLflow holds. when: UTC; unit: which device of the kind; build: of its system; latency_ms:
    None where the device's clock tells no time. badges: what disturbed the measurement.

    library: the first digits of its sha256; version: of the registry, '' where it has none; roles: champion,
    challenger, previous; run_id: of MLflow; url: its page in MLflow's UI.
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
    """What the gate said. promoted: whether the champion changed; reasons: what spoke against it; comparison: with the
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

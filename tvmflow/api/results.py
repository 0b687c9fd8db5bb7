"""Define the return values of the API: frozen values, each with `to_json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tvmflow.api.displays import Shown
from tvmflow.evaluation.latency_summary import Latency
from tvmflow.pipeline.results import CellResult
from tvmflow.support.errors import TvmflowError

if TYPE_CHECKING:
    from tvmflow.evaluation import scorecard as card_types

StageState = Literal["hit", "restore", "miss", "waits", "refused"]


class _Value(Shown):
    """A frozen dataclass whose fields are the keys of its JSON form."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True)
class TargetState(_Value):
    """A target. is_written: in params.yaml, not only known; note: what it is for; can_build, can_measure: with what
    this machine has; compiler, device: what is there, or missing; hints: what to do for the rest.
    """

    name: str
    is_written: bool
    note: str
    kind: str
    mcpu: str
    can_build: bool
    can_measure: bool
    compiler: str
    device: str
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class StagePlan(_Value):
    """The plan of a stage. key: the first digits of its recipe key, '' if it is not known yet."""

    stage: str
    state: StageState
    why: str
    key: str


@dataclass(frozen=True)
class CellPlan(Shown):
    """The plan of a cell. error: why it cannot be run; `stages` then has one row with that error. no_device: why a run
    would build it without its device, and not measure it; only where this was looked for.
    """

    cell: str
    stages: tuple[StagePlan, ...]
    error: TvmflowError | None = None
    no_device: TvmflowError | None = None

    @property
    def todo(self) -> tuple[str, ...]:
        """Return the stages that are not done."""
        return () if self.error else tuple(stage.stage for stage in self.stages if stage.state != "hit")

    def to_json(self) -> list[dict[str, Any]]:
        return [stage.to_json() for stage in self.stages]

    def _shown(self) -> list[dict[str, Any]]:
        return self.to_json()


@dataclass(frozen=True)
class CellStatus(_Value):
    """The progress of a listed cell. name: under `cells:`; error: why it cannot be run; warnings: badges of its
    scorecard. off: what it needs, "" for nothing said, if it is switched off; None if it is not. champion: whether its
    newest library is the champion, None if that is not known without a server. disturbed: what disturbed its latency.
    built: its library is up to date, and no device has measured it.
    """

    name: str
    cell: str
    todo: tuple[str, ...]
    measured: bool
    error: str | None
    warnings: tuple[str, ...] = ()
    off: str | None = None
    champion: bool | None = None
    disturbed: bool = False
    built: bool = False

    @property
    def next_step(self) -> str:
        """Return the command that is useful next. A cell that is switched off runs where it is named."""
        if self.off is not None:
            return f"tvmflow run {self.name}"
        if self.error is not None:
            return f"tvmflow why {self.name}"
        if self.todo:
            return f"tvmflow run {self.name}"
        if self.champion:
            return f"tvmflow bundle {self.name}"
        again = f"tvmflow run {self.name} --again --wait-quiet 600"
        return again if self.disturbed else f"tvmflow promote {self.name}"


@dataclass(frozen=True)
class ProposedVersion(_Value):
    """A library that a re-tune proposes to a person. cell: its registered model; when, text: of the judgement."""

    cell: str
    version: str
    when: str
    text: str


@dataclass(frozen=True)
class Status(_Value):
    """proposals: libraries that wait for `tvmflow promote CELL --proposal`; of a server only where it answers."""

    models: tuple[str, ...]
    targets: tuple[str, ...]
    cells: tuple[CellStatus, ...]
    proposals: tuple[ProposedVersion, ...] = ()

    def _shown(self) -> list[dict[str, Any]]:
        names = ("name", "cell", "todo", "measured", "error")
        return [{**{name: getattr(one, name) for name in names}, "next": one.next_step} for one in self.cells]


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

    @property
    def usable(self) -> bool:
        return self.state == "usable"

    def to_json(self) -> dict[str, Any]:
        return {**self.facts, "state": self.state}


@dataclass(frozen=True)
class KernelState(_Value):
    """A kernel of a network on a device. error: relative to its largest output on this machine's CPU; varies: its
    outputs differ between inputs.
    """

    kernel: str
    error: float
    varies: bool
    agrees: bool


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
class PhoneState(_Value):
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


@dataclass(frozen=True)
class ProcessorState(_Value):
    """A processor of a device after one small kernel. kind: cpu, opencl or vulkan; reason: why it cannot be used;
    seconds: of the check, None without one.
    """

    kind: str
    name: str
    works: bool
    reason: str
    seconds: float | None


@dataclass(frozen=True)
class DeviceCheck:
    """What a device is, and which of its processors compute correctly. core, attributes: values for mcpu and mattr, ""
    if the device does not report them; failure: the error of one whose processor of the target's kind does not compute.
    """

    unit: str
    build: str
    core: str
    attributes: tuple[str, ...]
    processors: tuple[ProcessorState, ...]
    failure: TvmflowError | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "build": self.build,
            "mcpu": self.core,
            "mattr": list(self.attributes),
            "processors": [one.to_json() for one in self.processors],
        }


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
class Scorecard(Shown):
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
    card: card_types.Scorecard = field(repr=False)

    @staticmethod
    def of(card: card_types.Scorecard) -> Scorecard:
        """Return the summary of a scorecard."""
        return Scorecard(
            cell=card.cell,
            device=card.device.kind,
            batch=card.batch,
            accuracy=card.accuracy.by_form if card.accuracy else None,
            max_relative_error=card.agreement.max_relative_error,
            latency=card.latency.compute,
            peers=card.peers,
            cold_start_ms=card.median_cold_start_ms,
            library_bytes=card.library_bytes,
            coverage=card.coverage,
            card=card,
        )

    @property
    def raw(self) -> Mapping[str, Any]:
        return self.card.to_json()

    def to_json(self) -> dict[str, Any]:
        return self.card.to_json()

    def _shown(self) -> list[dict[str, Any]]:
        shown = [(name, value) for name, value in vars(self).items() if name not in ("card", "latency", "peers")]
        times = {"tvmflow": self.latency, **self.peers}
        shown += [(f"{name}, ms", one.median_ms if one.is_time else one.badges) for name, one in times.items()]
        return [{"": name, "value": value} for name, value in shown]


@dataclass(frozen=True)
class RunResult(Shown):
    """The result of a run for one cell. outcomes: stage -> hit, restored or made; failed_stage: the origin of
    `error`. unmeasured: why the library was built without its device and not measured, "" if it was measured.
    """

    cell: str
    outcomes: Mapping[str, str]
    error: TvmflowError | None = None
    failed_stage: str | None = None
    scorecard: Scorecard | None = field(default=None, repr=False)
    unmeasured: str = ""

    @staticmethod
    def of(result: CellResult, card: card_types.Scorecard | None) -> RunResult:
        """Return what a flow returned, with the scorecard that the cell has now."""
        known = Scorecard.of(card) if card else None
        return RunResult(result.cell, result.outcomes, result.error, result.failed_stage, known, result.unmeasured)

    def to_json(self) -> dict[str, Any]:
        error = self.error.to_json() if self.error else None
        return {
            "cell": self.cell,
            "outcomes": dict(self.outcomes),
            "error": error,
            "failed_stage": self.failed_stage,
            "unmeasured": self.unmeasured,
        }

    def _shown(self) -> list[dict[str, Any]]:
        rows = [{"": "cell", "value": self.cell}, {"": "stages", "value": dict(self.outcomes)}]
        if self.error:
            rows.append({"": "error", "value": str(self.error)})
        return [*rows, *(self.scorecard._shown()[1:] if self.scorecard else ())]


@dataclass(frozen=True)
class Measurement(Shown):
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

    def _shown(self) -> list[dict[str, Any]]:
        return [{"": name, "value": value} for name, value in vars(self).items() if name != "row"]

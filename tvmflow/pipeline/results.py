"""Define what flows return for a cell. Flows pass it on as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import PlainValidator

from tvmflow.evaluation.latency_ratio import Comparison
from tvmflow.support.errors import TvmflowError, from_json
from tvmflow.support.json_values import to_json

Error = Annotated[TvmflowError, PlainValidator(from_json)]


@dataclass
class CellResult:
    """The progress of a run of one cell. outcomes: stage -> hit, restored, made; failed_stage: the origin of `error`: a
    stage, `preflight`, `record` or `publish`. unmeasured: why the library was built without its device, "" if it was
    measured.
    """

    cell: str
    outcomes: dict[str, str] = field(default_factory=dict)
    error: Error | None = None
    failed_stage: str | None = None
    unmeasured: str = ""


@dataclass(frozen=True)
class Verdict:
    """The verdict of the gate. promoted: the champion changed; proposed: it waits for a person; reasons: against the
    release; comparison: with the champion.
    """

    passed: bool
    promoted: bool
    reasons: tuple[str, ...]
    text: str
    comparison: Comparison | None = None
    proposed: bool = False

    def to_json(self) -> dict[str, Any]:
        return dict(to_json(self))


@dataclass(frozen=True)
class RetuneResult:
    """The result of a re-tune for one cell. before, now: versions of the toolchain, before: None without a champion;
    changes: stage -> what changed in its recipe since the champion; tuning: numbers of replayed, lost, searched
    kernels; outcomes: stage -> hit, restored or made; comparison: of the new library with the champion, None without
    one; proposed: the library waits for a person.
    """

    cell: str
    verdict: str = ""
    promoted: bool = False
    proposed: bool = False
    changes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    outcomes: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, str] | None = None
    now: Mapping[str, str] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    comparison: Comparison | None = None
    error: Error | None = None

    def to_json(self) -> dict[str, Any]:
        return dict(to_json(self))


@dataclass(frozen=True)
class RetunePlan:
    """What a re-tune would do with a cell. device: where it is measured; group: cells of one group are re-tuned one
    after the other; changes: stage -> what changed in its recipe
    since the champion; reused, remeasured, retuned: kernels, retuned: at most; minutes: at least and at most; verdict:
    why nothing is to be done.
    """

    cell: str
    device: str = ""
    group: str = ""
    champion: str = ""
    changes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    reused: int = 0
    remeasured: int = 0
    retuned: int = 0
    minutes: tuple[float, float] = (0.0, 0.0)
    verdict: str = ""
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return dict(to_json(self))


@dataclass(frozen=True)
class KernelRatio:
    """A kernel in both libraries. ratio: its time in the second over that in the first, with its interval; None where
    only one library has it.
    """

    kernel: str
    workload: str
    before_ms: float | None
    after_ms: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ToolchainComparison:
    """A cell with two versions of TVM. comparison: of the networks, None with `error`; origins: of the second's
    schedules, by number of kernels: reused, re-measured, re-tuned; kernels: none where a device has no profile.
    """

    cell: str
    before: str
    after: str
    comparison: Comparison | None = None
    kernels: tuple[KernelRatio, ...] = ()
    origins: Mapping[str, int] | None = None
    error: Error | None = None

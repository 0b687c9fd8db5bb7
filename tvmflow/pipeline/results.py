"""Define what flows return for a cell. Flows pass it on as JSON."""

from __future__ import annotations

from collections.abc import Mapping
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
    stage, `preflight`, `record` or `publish`.
    """

    cell: str
    outcomes: dict[str, str] = field(default_factory=dict)
    error: Error | None = None
    failed_stage: str | None = None


@dataclass(frozen=True)
class Verdict:
    """The verdict of the gate. promoted: the champion changed; reasons: against the release; comparison: with the
    champion.
    """

    passed: bool
    promoted: bool
    reasons: tuple[str, ...]
    text: str
    comparison: Comparison | None = None

    def to_json(self) -> dict[str, Any]:
        return dict(to_json(self))


@dataclass(frozen=True)
class RetuneResult:
    """The result of a re-tune for one cell. before, now: versions of the toolchain, before: None without a champion;
    tuning: numbers of replayed, lost, searched kernels; outcomes: stage -> hit, restored or made; comparison: of the
    new library with the champion, None without one.
    """

    cell: str
    verdict: str = ""
    promoted: bool = False
    outcomes: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, str] | None = None
    now: Mapping[str, str] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    comparison: Comparison | None = None
    error: Error | None = None

    def to_json(self) -> dict[str, Any]:
        return dict(to_json(self))

"""Define the gates of an app, each an independent rule for its cells or its bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvmflow.config.params import Gates
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.shipping.gates.gpu import GATE


@dataclass(frozen=True)
class GateResult:
    """The result of one gate for one cell, or for the bundle. value: None if the scorecard has none; limit: of
    params.yaml; text: a reason that is not a number.
    """

    gate: str
    what: str
    value: float | bool | None
    limit: float | bool
    passed: bool
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def reason(self) -> str:
        """Return the reason against the release as text."""
        if self.text:
            return f"{self.what}: {self.text} ({self.gate})"
        value = "not measured" if self.value is None else f"{self.value:g}"
        side = "at least" if self.gate.startswith("min_") else "at most"
        return f"{self.what}: {_NAMES[self.gate]} is {value}, {side} {self.limit:g} is required ({self.gate})"


_NAMES = {
    "min_accuracy": "accuracy",
    "max_accuracy_drop": "accuracy drop from the source",
    "min_top1_agreement": "top-1 agreement",
    "min_coverage": "share of measured schedules",
    "max_latency_ms": "median latency in ms",
    "max_cold_start_ms": "cold start in ms",
    "max_first_run_ms": "first run in ms",
    "max_memory_mb": "memory of a process in MB",
    "max_library_mb": "library in MB",
    "max_bundle_mb": "bundle in MB",
    "max_gpu_compile_ms": "opening without cached programs in ms",
    "max_gpu_open_ms": "opening with cached programs in ms",
    "max_gpu_copy_out_ms": "copy of the outputs from the GPU in ms",
}


def _latency(card: Scorecard) -> float | None:
    """Return the median; for a disturbed measurement the upper end of its interval, to be safe."""
    latency = card.latency.compute
    if not card.has_time or not latency.is_time:
        return None
    return (latency.high_ms if latency.badges else None) or latency.median_ms


# Gate -> its value in a scorecard. The gates of `_OPTIONAL` do not apply to a model without labels or top-1, or to a
# network that is not on a GPU.
_VALUES: dict[str, Callable[[Scorecard], float | bool | None]] = {
    "min_accuracy": lambda card: card.accuracy.built if card.accuracy else None,
    "max_accuracy_drop": lambda card: card.accuracy.source - card.accuracy.built if card.accuracy else None,
    "min_top1_agreement": lambda card: card.agreement.top1_agreement,
    "min_coverage": lambda card: card.coverage,
    "max_latency_ms": _latency,
    "max_cold_start_ms": lambda card: card.median_cold_start_ms if card.has_time else None,
    "max_first_run_ms": lambda card: card.median_first_run_ms if card.has_time else None,
    "max_memory_mb": lambda card: None if card.memory_bytes is None else card.memory_bytes / 1e6,
    "max_gpu_compile_ms": lambda card: card.gpu.compile_ms if card.gpu else None,
    "max_gpu_open_ms": lambda card: card.gpu.open_ms if card.gpu else None,
    "max_gpu_copy_out_ms": lambda card: card.gpu.copy_out_ms if card.gpu else None,
}
_OPTIONAL = ("max_accuracy_drop", "min_top1_agreement", "max_gpu_compile_ms", "max_gpu_open_ms", "max_gpu_copy_out_ms")


def judge_cell(cell: str, card: Scorecard, library_bytes: int, gates: Gates) -> list[GateResult]:
    """Return the results of all gates for a cell."""
    limits = gates.model_dump()
    judged = [GateResult("no_warnings", cell, False, True, False, one.text) for one in card.warnings]
    for gate, value_of in _VALUES.items():
        limit = limits[gate]
        if limit is None or limit is False:
            continue
        value = value_of(card)
        if value is None and gate in _OPTIONAL:
            continue
        passed = value is not None and _passes(gate, value, limit)
        judged.append(
            GateResult(gate, cell, value, limit, passed, "" if passed else _undecided_reason(gate, card, limit))
        )
    return [*judged, *_size("max_library_mb", cell, library_bytes, gates.max_library_mb)]


def _undecided_reason(gate: str, card: Scorecard, limit: float) -> str:
    """Return a reason if a disturbed latency's interval contains the limit; "" otherwise."""
    latency = card.latency.compute
    if gate != "max_latency_ms" or not latency.badges or (latency.low_ms or latency.median_ms) > limit:
        return ""
    return (
        f"its median latency of {latency.median_ms:g} ms has an interval up to "
        f"{latency.high_ms:g} ms, at most {limit:g} is "
        f"required, and the measurement was disturbed ({', '.join(latency.badges)}): measure again with "
        "'tvmflow run CELL --again --wait-quiet SECONDS'"
    )


def judge_gpu(cell: str, reasons: Sequence[str]) -> list[GateResult]:
    """Return the gate result of a cell on a GPU."""
    return [GateResult(GATE, cell, False, True, False, reason) for reason in reasons] or [
        GateResult(GATE, cell, True, True, True)
    ]


def judge_bundle(size: int, gates: Gates) -> list[GateResult]:
    """Return the gate results of the whole bundle."""
    return _size("max_bundle_mb", "the bundle", size, gates.max_bundle_mb)


def _size(gate: str, what: str, size: int, limit: float | None) -> list[GateResult]:
    return [] if limit is None else [GateResult(gate, what, size / 1e6, limit, size / 1e6 <= limit)]


def _passes(gate: str, value: float | bool, limit: float | bool) -> bool:
    if gate.startswith("min_"):
        return value >= limit
    return value <= limit if gate.startswith("max_") else value == limit

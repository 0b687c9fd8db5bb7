"""The gates of an app: each a rule that its cells pass or do not, apart from all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvmflow.config.params import Gates
from tvmflow.evaluation.scorecard import has_no_time
from tvmflow.shipping.gates.gpu import GATE


@dataclass(frozen=True)
class Judged:
    """One gate on one cell, or on the bundle. value: None where the scorecard has none; limit: of params.yaml; text:
    what speaks against it, where that is no number.
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
        """What speaks against the release, in words."""
        if self.text:
            return f"{self.what}: {self.text} ({self.gate})"
        value = "not measured" if self.value is None else f"{self.value:g}"
        side = "at least" if self.gate.startswith("min_") else "at most"
        return f"{self.what}: {_NAMES[self.gate]} is {value}, {side} {self.limit:g} is asked for ({self.gate})"


_NAMES = {
    "min_accuracy": "accuracy",
    "max_accuracy_drop": "accuracy lost beside the source",
    "min_top1_agreement": "top-1 agreement",
    "min_coverage": "share of measured schedules",
    "max_latency_ms": "median latency in ms",
    "max_cold_start_ms": "cold start in ms",
    "max_first_run_ms": "first run in ms",
    "max_memory_mb": "memory of a process in MB",
    "max_library_mb": "library in MB",
    "max_bundle_mb": "bundle in MB",
    "max_gpu_compile_ms": "opening without kept programs in ms",
    "max_gpu_open_ms": "opening with kept programs in ms",
    "max_gpu_copy_out_ms": "copy of the outputs from the GPU in ms",
}


def _accuracy(card: Mapping[str, Any]) -> float | None:
    return float(card["accuracy"]["built"]) if card["accuracy"] else None


def _drop(card: Mapping[str, Any]) -> float | None:
    return float(card["accuracy"]["source"] - card["accuracy"]["built"]) if card["accuracy"] else None


def _latency(card: Mapping[str, Any]) -> float | None:
    """Return the median; of a disturbed measurement the upper end of its interval, which is on the safe side."""
    latency = card["latency"]["compute"]
    if has_no_time(card) or not latency["is_time"]:
        return None
    return float((latency["badges"] and latency["high_ms"]) or latency["median_ms"])


def _median_of(name: str) -> Callable[[Mapping[str, Any]], float | None]:
    def median(card: Mapping[str, Any]) -> float | None:
        values = sorted(card.get(name) or ()) if not has_no_time(card) else []
        return float(values[len(values) // 2]) if values else None

    return median


def _of_gpu(name: str) -> Callable[[Mapping[str, Any]], float | None]:
    def number(card: Mapping[str, Any]) -> float | None:
        return float(card["gpu"][name]) if card.get("gpu") else None

    return number


def _memory(card: Mapping[str, Any]) -> float | None:
    memory_bytes = card.get("memory_bytes")
    return None if memory_bytes is None else float(memory_bytes) / 1e6


# Gate -> its value of a scorecard. A model without labels or top-1, or whose network no GPU computes, has nothing that
# the gates of `_OPTIONAL` could be about.
_VALUES: dict[str, Callable[[Mapping[str, Any]], float | bool | None]] = {
    "min_accuracy": _accuracy,
    "max_accuracy_drop": _drop,
    "min_top1_agreement": lambda card: card["agreement"]["top1_agreement"],
    "min_coverage": lambda card: float(card.get("coverage", 0.0)),
    "max_latency_ms": _latency,
    "max_cold_start_ms": _median_of("cold_start_ms"),
    "max_first_run_ms": _median_of("first_run_ms"),
    "max_memory_mb": _memory,
    "max_gpu_compile_ms": _of_gpu("compile_ms"),
    "max_gpu_open_ms": _of_gpu("open_ms"),
    "max_gpu_copy_out_ms": _of_gpu("copy_out_ms"),
}
_OPTIONAL = ("max_accuracy_drop", "min_top1_agreement", "max_gpu_compile_ms", "max_gpu_open_ms", "max_gpu_copy_out_ms")


def judge_cell(cell: str, card: Mapping[str, Any], library_bytes: int, gates: Gates) -> list[Judged]:
    """Return every gate that there is for a cell."""
    limits = gates.model_dump()
    judged = []
    for gate, value_of in _VALUES.items():
        limit = limits[gate]
        if limit is None or limit is False:
            continue
        value = value_of(card)
        if value is None and gate in _OPTIONAL:
            continue
        passed = value is not None and _passes(gate, value, limit)
        judged.append(Judged(gate, cell, value, limit, passed, "" if passed else _undecided(gate, card, limit)))
    return [*judged, *_size("max_library_mb", cell, library_bytes, gates.max_library_mb)]


def _undecided(gate: str, card: Mapping[str, Any], limit: float) -> str:
    """Return what to say of a latency whose interval holds the limit because something disturbed it; "" of all else."""
    latency = card["latency"]["compute"]
    if gate != "max_latency_ms" or not latency["badges"] or (latency["low_ms"] or latency["median_ms"]) > limit:
        return ""
    return (
        f"its median latency of {latency['median_ms']:g} ms lies in an interval up to "
        f"{latency['high_ms']:g} ms, at most {limit:g} is "
        f"asked for, and the measurement was disturbed ({', '.join(latency['badges'])}): measure again with "
        "'tvmflow run CELL --again --wait-quiet SECONDS'"
    )


def judge_gpu(cell: str, reasons: Sequence[str]) -> list[Judged]:
    """Return the gate of a cell that a GPU computes, which each such cell has."""
    return [Judged(GATE, cell, False, True, False, reason) for reason in reasons] or [
        Judged(GATE, cell, True, True, True)
    ]


def judge_bundle(size: int, gates: Gates) -> list[Judged]:
    """Return the gates of the bundle as a whole."""
    return _size("max_bundle_mb", "the bundle", size, gates.max_bundle_mb)


def _size(gate: str, what: str, size: int, limit: float | None) -> list[Judged]:
    return [] if limit is None else [Judged(gate, what, size / 1e6, limit, size / 1e6 <= limit)]


def _passes(gate: str, value: float | bool, limit: float | bool) -> bool:
    if gate.startswith("min_"):
        return value >= limit
    return value <= limit if gate.startswith("max_") else value == limit

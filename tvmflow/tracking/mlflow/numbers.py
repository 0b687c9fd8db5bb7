"""Convert a scorecard and the records of its stages to metrics of MLflow."""

from __future__ import annotations

from collections.abc import Mapping

from tvmflow.config.buckets import metric_of
from tvmflow.evaluation.agreement import Agreement
from tvmflow.evaluation.roofline import Bounds
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.pipeline.record import Record

_TUNING = ("measured", "device_hours", "trials_per_minute", "saved_s", "winograd")


def numbers_of(card: Scorecard, records: Mapping[str, Record]) -> dict[str, float]:
    """Return metric -> value; the badges of latencies are in the tag `latency.badges`."""
    numbers = _agreement("agreement", card.agreement)
    if card.accuracy:
        shares = card.accuracy.by_form
        numbers |= {"accuracy" if form == "built" else f"accuracy.{form}": share for form, share in shares.items()}
    for step, agreement in card.agreement_by_step.items():
        numbers |= _agreement(f"agreement.{step}", agreement)
    numbers |= {
        f"quantization.{name}": float(value)
        for name, value in card.quantization.items()
        if name in ("output_sqnr_db", "float_score", "quantized_score") and value is not None
    }
    for name, latency in vars(card.latency).items():
        numbers[f"undisturbed.{name}"] = latency.undisturbed / latency.turns
        numbers |= _known(latency, {f"{state}.{name}": state for state in ("foreign_load", "round_trip_ns")})
        if latency.is_time:
            prefix = f"{name}_ms" if name != "compute" else ("latency_ms" if card.has_time else "simulator_ms")
            stats = ("median", "mean", "p90", "min", "max", "std", "low", "high")
            numbers |= _known(latency, {f"{prefix}.{stat}": f"{stat}_ms" for stat in stats})
    numbers |= {f"peer_ms.{name}": peer.median_ms for name, peer in card.peers.items() if peer.is_time}
    for name, advantage in card.advantages.items():
        numbers |= _known(advantage, {f"advantage.{name}.{k}": k for k in ("times_faster", "low", "high")})
    if card.machine and card.machine.latency.is_time:
        numbers["machine_ms.median"] = card.machine.latency.median_ms
    if card.executed:
        numbers |= {name: float(value) for name, value in vars(card.executed).items()}
    else:
        numbers |= _known(card, {f"{start}_ms": f"median_{start}_ms" for start in ("cold_start", "first_run")})
    if card.memory_bytes:
        numbers["memory_bytes"] = float(card.memory_bytes)
    numbers |= _of_gpu(card) | {metric_of(k): one.median_ms for k, one in card.sizes.items() if one.is_time}
    numbers |= card.bounds.metrics if isinstance(card.bounds, Bounds) else {}
    numbers["library_bytes"] = float(card.library_bytes)
    numbers["tuning.coverage"] = float(card.coverage)
    numbers |= {name: float(value) for name, value in (card.part.metrics if card.part else {}).items()}
    tuned = records["tune"].facts if "tune" in records else {}
    numbers |= {f"tuning.{name}": float(tuned[name]) for name in _TUNING if name in tuned}
    kernels = tuned.get("kernels", {})
    numbers |= {f"tuning.kernels.{origin}": float(count) for origin, count in kernels.items()}
    numbers |= {f"stage_s.{name}": record.elapsed_s for name, record in records.items()}
    return numbers


def _of_gpu(card: Scorecard) -> dict[str, float]:
    """Return the numbers that only libraries of a GPU have."""
    numbers = {f"gpu.{name}": float(value) for name, value in (vars(card.gpu) if card.gpu else {}).items()}
    return numbers | _known(card.kernel_agreement, {"kernel_agreement.largest_error": "largest_error"})


def _agreement(prefix: str, agreement: Agreement) -> dict[str, float]:
    """Return the numbers of one comparison under their names; a model with one output has no top-1."""
    return _known(agreement, {f"{prefix}.{name}": name for name in vars(agreement) if name != "samples"})


def _known(part: object, names: Mapping[str, str]) -> dict[str, float]:
    """Return metric -> number, for those that a part of a scorecard has. names: metric -> attribute."""
    found = {metric: getattr(part, name, None) for metric, name in names.items()}
    return {metric: float(value) for metric, value in found.items() if value is not None}

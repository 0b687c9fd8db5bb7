"""Define the scorecard: what evaluate measured of a cell, as scorecard.json holds it.

The names of the fields are the keys of the file. Keys that cards of older versions lack have a default here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from tvmflow.config.buckets import metric_of
from tvmflow.devices.gpu.quarantine import DifferingKernel
from tvmflow.devices.gpu_facts import GpuFacts
from tvmflow.devices.session import Executed
from tvmflow.evaluation.agreement import Agreement
from tvmflow.evaluation.latency_summary import Advantage, Latency
from tvmflow.evaluation.quality_warnings import QualityWarning
from tvmflow.evaluation.roofline import Bounds, NoBounds
from tvmflow.support.errors import StoreError
from tvmflow.support.json_values import OPTIONAL, from_json, to_json


@dataclass(frozen=True)
class Accuracy:
    """The share after each stage of samples (of maps: pixels) whose most likely class is the label, or with the label
    among five, or the value of the model's metric.
    """

    source: float
    imported: float
    quantized: float
    built: float
    samples: int

    @property
    def by_form(self) -> dict[str, float]:
        """Return form of the network -> share, in the order of the stages."""
        return {name: share for name, share in vars(self).items() if name != "samples"}


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The outputs of a library beside the source framework's and the labels.

    agreement: with several outputs the worst of each number, and `outputs` lists all. top5: None for fewer than six
    classes; accuracy: None without labels. metric: of the model, in place of the accuracy.
    """

    agreement: Agreement
    agreement_by_step: Mapping[str, Agreement] = field(default_factory=dict)
    accuracy: Accuracy | None
    top5: Accuracy | None = None
    metric: str | None = None
    outputs: tuple[Agreement, ...] = ()


@dataclass(frozen=True)
class LatencyByPart:
    """copy_in and copy_out: through the transport, on the clock of this machine."""

    compute: Latency
    copy_in: Latency
    copy_out: Latency


@dataclass(frozen=True)
class MachineForm:
    """The same kernels in TVM's virtual machine. advantage: of network.so over it; None if the clock is not a time."""

    latency: Latency
    advantage: Advantage | None


@dataclass(frozen=True)
class GpuNumbers:
    """Milliseconds of the shipped library on a GPU: open with a cold program cache (compile_ms) and with a warm one
    (open_ms), and copies of inputs and outputs between host and GPU.
    """

    compile_ms: float
    open_ms: float
    copy_in_ms: float
    copy_out_ms: float


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """The costs of a library on its device.

    cold_start_ms, first_run_ms: of each cold start; memory_bytes: growth of the process, None if unknown. peers,
    advantages: by baseline; sizes: by bucket. executed: None on a device with a clock; gpu: None on others; machine:
    None if that form is not another file. kernels_ms: of all calls of a kernel in a run, on this machine's CPU.
    """

    cold_start_ms: tuple[float, ...]
    first_run_ms: tuple[float, ...] = ()
    memory_bytes: int | None = None
    latency: LatencyByPart
    peers: Mapping[str, Latency]
    executed: Executed | None = None
    gpu: GpuNumbers | None = None
    sizes: Mapping[str, Latency] = field(default_factory=dict)
    advantages: Mapping[str, Advantage] = field(default_factory=dict)
    machine: MachineForm | None = None
    kernels_ms: Mapping[str, float] = field(default_factory=dict, metadata=OPTIONAL)

    @property
    def median_cold_start_ms(self) -> float:
        return sorted(self.cold_start_ms)[len(self.cold_start_ms) // 2]

    @property
    def median_first_run_ms(self) -> float | None:
        return sorted(self.first_run_ms)[len(self.first_run_ms) // 2] if self.first_run_ms else None


@dataclass(frozen=True)
class Device:
    """unit: the device of its kind; build: of its system; gpu: the one that computes."""

    key: str
    kind: str
    threads: int
    unit: str = ""
    build: str = field(default="", metadata=OPTIONAL)
    gpu: GpuFacts | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class GpuAgreement:
    """The agreement of a GPU's kernels with the CPU's. kernels: how many; first: that differs; largest_error: None if
    not finite.
    """

    kernels: int
    samples: int
    bound: float
    largest_error: float | None
    first: DifferingKernel | None


class AcceleratorPart(BaseModel):
    """What an accelerator computes. simulated: measured times are meaningless, `estimated_ms` is used."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    simulated: bool
    estimated_ms: float
    metrics: Mapping[str, int | float]

    @property
    def details(self) -> Mapping[str, Any]:
        """Return the other keys, which belong to the backend."""
        return self.model_extra or {}


@dataclass(frozen=True, kw_only=True)
class Scorecard(Quality, OnDevice):
    """coverage: share of the operations whose schedules were measured. bounds: on this machine's CPU. quantization:
    quantization.json. warnings: what makes the quality doubtful.
    """

    cell: str
    device: Device
    batch: int
    library_bytes: int
    coverage: float
    coverage_estimated: float = 0.0
    peer_variants: Mapping[str, str] = field(default_factory=dict)
    peers_left_out: Mapping[str, str] = field(default_factory=dict)
    bounds: Bounds | NoBounds | None = field(default=None, metadata=OPTIONAL)
    part: AcceleratorPart | None
    kernel_agreement: GpuAgreement | None = None
    quantization: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[QualityWarning, ...] = ()

    @staticmethod
    def from_json(value: Any) -> Scorecard:
        """Read the content of scorecard.json. Raises StoreError, also for a card from before latencies had badges."""
        try:
            return from_json(Scorecard, value)
        except ValueError as error:
            raise StoreError(f"a scorecard that cannot be read: {error}", "one of this version of tvmflow") from None

    def to_json(self) -> dict[str, Any]:
        """Return the content of scorecard.json."""
        return dict(to_json(self))

    @property
    def has_time(self) -> bool:
        """Return whether the device's clock is a time: the device is neither simulated nor emulated."""
        return not (self.executed or (self.part and self.part.simulated))

    @property
    def metrics(self) -> dict[str, Any]:
        """Return the numbers of metrics.json."""
        compute = self.latency.compute
        metrics: dict[str, Any] = {}
        if self.has_time:
            metrics |= {"latency_ms": compute.median_ms, "latency_ms_badges": ", ".join(compute.badges)}
            if compute.low_ms is not None:
                metrics |= {"latency_ms_low": compute.low_ms, "latency_ms_high": compute.high_ms}
            metrics |= {metric_of(label): latency.median_ms for label, latency in self.sizes.items()}
        shares = ("max_relative_error", "sqnr_db", "pixel_agreement", "cosine", "equal")
        metrics |= {name: value for name in shares if (value := getattr(self.agreement, name)) is not None}
        metrics |= {"library_bytes": self.library_bytes, "top1_agreement": self.agreement.top1_agreement}
        metrics |= self.bounds.metrics if isinstance(self.bounds, Bounds) else {}
        metrics |= vars(self.executed) if self.executed else {}
        metrics |= self.part.metrics if self.part else {}
        metrics |= {name: one.built for name in ("accuracy", "top5") if (one := getattr(self, name))}
        return metrics

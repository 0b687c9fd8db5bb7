"""Ask a device for its processor and cache the reply, for targets with `mcpu: device`."""

from __future__ import annotations

from tvmflow.config.params import TargetEntry
from tvmflow.devices.registry import transport_of
from tvmflow.targets.device_processor import processor_from
from tvmflow.targets.probed_processors import record
from tvmflow.targets.processors import check_processor


def ask_processor(entry: TargetEntry, wait_s: float | None) -> tuple[str, tuple[str, ...]]:
    """Return LLVM's name and attributes of the processor of a target's device, and cache them. wait_s: for a free
    device. Raises DeviceError, WrongProcessorError, UsageError.
    """
    mtriple = entry.mtriple or ""
    mcpu, attributes = processor_from(transport_of(entry.device).processor(entry.device, wait_s), mtriple)
    check_processor(mcpu, mtriple, attributes)
    record(entry, mcpu, attributes)
    return mcpu, attributes

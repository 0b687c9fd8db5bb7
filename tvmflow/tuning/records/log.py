"""Store measurements in a log and select those that are valid for a device kind and toolchain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tvmflow.tuning.records.record import TuningRecord, append_record, read_records


@dataclass(frozen=True)
class TuningLog:
    """A log of measurements for one device kind and toolchain.

    Each cell writes its own log, which DVC versions with it, and also reads the logs of the other cells beside it.
    """

    path: Path
    device_kind: str
    toolchain: dict[str, str]

    def known(self) -> list[TuningRecord]:
        """Return the valid records of this device kind and toolchain, without failures that may be the host's."""
        return [r for r in self._of_this_device() if r.same_toolchain(self.toolchain) and r.proven]

    def from_other_toolchains(self) -> list[TuningRecord]:
        """Return the records of this device kind that other toolchains measured."""
        return [record for record in self._of_this_device() if not record.same_toolchain(self.toolchain)]

    def _of_this_device(self) -> list[TuningRecord]:
        logs = sorted({self.path, *self.path.parent.glob("*.jsonl")})
        return [record for log in logs for record in read_records(log) if record.device_kind == self.device_kind]

    def add(self, record: TuningRecord) -> None:
        append_record(self.path, record)
